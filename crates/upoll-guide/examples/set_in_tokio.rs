//! A set of upoll, served by a task of tokio: user-level channels and a socket in one set.
//!
//! ```sh
//! cargo run -p upoll-guide --example set_in_tokio
//! ```

use std::io::{Error, Read, Write};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use upoll::{Epoll, Event, Events, pipe};

const SOCKET: u64 = 1000;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Error> {
    let set = Epoll::new()?;
    let pipes = (0..3).map(|_| pipe()).collect::<Result<Vec<_>, _>>()?;
    for (data, (reader, _)) in (0..).zip(&pipes) {
        set.add(reader, Event::new(Events::IN, data))?;
    }
    let (mut socket, mut peer) = UnixStream::pair()?;
    set.add(&socket, Event::new(Events::IN, SOCKET))?;

    // Other threads write. They know nothing of tokio.
    let writers: Vec<_> = pipes.iter().map(|(_, writer)| writer.clone()).collect();
    let writing = std::thread::spawn(move || {
        for writer in writers {
            std::thread::sleep(Duration::from_millis(10));
            writer.try_write(b"user-level").expect("there is room");
        }
        peer.write_all(b"kernel").expect("there is room");
    });

    // ANCHOR: serve
    // SAFETY: the fd stays the same and open while this exists, as the program closes no fds of others.
    let fd = unsafe { AsyncFd::register_with_interest(set.readiness_fd()?, Interest::READABLE)? };
    let mut events = [Event::default(); 16];
    let mut buffer = [0; 64];
    let mut served = 0;
    while served < pipes.len() + 1 {
        // The task sleeps here, with all others of the runtime.
        let mut ready = fd.readable().await?;
        let found = set.try_wait(&mut events)?;
        if found < events.len() {
            // All was harvested: the next event makes the fd ready again.
            ready.clear_ready();
        }
        for event in &events[..found] {
            let length = match event.data() {
                SOCKET => socket.read(&mut buffer)?,
                pipe => pipes[usize::try_from(pipe).expect("few")]
                    .0
                    .try_read(&mut buffer)?,
            };
            println!("{}: {}", event.data(), buffer[..length].escape_ascii());
            served += 1;
        }
    }
    // ANCHOR_END: serve
    writing.join().expect("it does not panic");
    Ok(())
}
