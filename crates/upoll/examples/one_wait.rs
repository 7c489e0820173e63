//! One wait for a user-level object and a TCP socket.
//!
//! A server sends numbers over TCP that a thread of the same process produces. One call waits for
//! both, the socket and the in-process queue.

use std::collections::VecDeque;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Mutex;
use std::thread;
use std::time::Duration;

use upoll::{Epoll, Event, Events, File, PollTable, Pollable, WaitQueue};

/// An in-process queue that sets can watch.
#[derive(Default)]
struct Numbers {
    waiting: Mutex<VecDeque<u64>>,
    arrived: WaitQueue,
}

impl Numbers {
    fn put(&self, number: u64) {
        self.waiting.lock().unwrap().push_back(number);
        self.arrived.wake(Events::IN);
    }

    fn take(&self) -> Option<u64> {
        self.waiting.lock().unwrap().pop_front()
    }
}

impl Pollable for Numbers {
    fn poll<'q>(&'q self, table: &mut PollTable<'q>) -> Events {
        table.register(&self.arrived);
        if self.waiting.lock().unwrap().is_empty() {
            Events::empty()
        } else {
            Events::IN
        }
    }
}

const SOCKET: u64 = 1;
const NUMBERS: u64 = 2;

// ANCHOR: serve
/// Sends each number that is produced, until the client writes or closes its end.
fn serve(
    mut stream: TcpStream,
    numbers: &File<Numbers>,
) -> Result<usize, Box<dyn std::error::Error>> {
    let set = Epoll::new()?;
    set.add(&stream, Event::new(Events::IN, SOCKET))?;
    set.add(numbers, Event::new(Events::IN, NUMBERS))?;
    let mut sent = 0;
    let mut events = [Event::default(); 8];
    loop {
        let ready = set.wait(&mut events, Duration::from_secs(10))?;
        for event in &events[..ready] {
            match event.data() {
                SOCKET => return Ok(sent),
                NUMBERS => {
                    while let Some(number) = numbers.take() {
                        writeln!(stream, "{number}")?;
                        sent += 1;
                    }
                }
                other => unreachable!("nothing was added with {other}"),
            }
        }
    }
}
// ANCHOR_END: serve

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let numbers = File::new(Numbers::default());
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let mut client = TcpStream::connect(listener.local_addr()?)?;
    let (stream, _) = listener.accept()?;

    let producer = numbers.clone();
    thread::spawn(move || {
        for number in 0..5 {
            thread::sleep(Duration::from_millis(5));
            producer.put(number * number);
        }
    });
    let reader = thread::spawn(move || {
        let mut text = String::new();
        let mut byte = [0];
        while text.lines().count() < 5 || !text.ends_with('\n') {
            client.read_exact(&mut byte)?;
            text.push(char::from(byte[0]));
        }
        client.write_all(b"enough")?;
        Ok::<_, std::io::Error>(text)
    });

    let sent = serve(stream, &numbers)?;
    let text = reader.join().expect("the reader does not panic")?;
    assert_eq!(sent, 5);
    assert_eq!(text, "0\n1\n4\n9\n16\n");
    println!("one wait served {sent} numbers and heard the client over TCP");
    Ok(())
}
