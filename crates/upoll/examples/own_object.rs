//! Makes a type of one's own pollable, and waits for it.

use std::collections::VecDeque;
use std::sync::Mutex;
use std::thread;

use upoll::{Epoll, Errno, Event, Events, File, PollTable, Pollable, WaitQueue};

// ANCHOR: object
/// An in-process queue that sets can watch.
#[derive(Default)]
struct Channel {
    messages: Mutex<VecDeque<String>>,
    arrived: WaitQueue,
}

impl Channel {
    fn send(&self, message: &str) {
        self.messages.lock().unwrap().push_back(message.to_owned());
        self.arrived.wake(Events::IN);
    }

    fn receive(&self) -> Option<String> {
        self.messages.lock().unwrap().pop_front()
    }
}

impl Pollable for Channel {
    fn poll<'q>(&'q self, table: &mut PollTable<'q>) -> Events {
        table.register(&self.arrived);
        if self.messages.lock().unwrap().is_empty() {
            Events::empty()
        } else {
            Events::IN
        }
    }
}
// ANCHOR_END: object

// ANCHOR: main
fn main() -> Result<(), Errno> {
    let channel = File::new(Channel::default());
    let set = Epoll::new()?;
    set.add(&channel, Event::new(Events::IN, 7))?;

    let sender = channel.clone();
    let thread = thread::spawn(move || {
        for word in ["one", "two", "three"] {
            sender.send(word);
        }
    });

    let mut received = Vec::new();
    while received.len() < 3 {
        let mut events = [Event::default(); 4];
        let ready = set.wait(&mut events, None)?;
        assert_eq!((ready, events[0].data()), (1, 7));
        received.extend(channel.receive());
    }
    thread.join().expect("the sender does not panic");
    println!("received {}", received.join(", "));
    assert_eq!(received, ["one", "two", "three"]);
    Ok(())
}
// ANCHOR_END: main
