//! Waits for a job or a socket: one call waits for a channel and for a TCP client.
//!
//! Threads of the process send jobs through the channel. The server writes the result of each job to the
//! client, until the client writes something.

use std::error::Error;
use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::thread;

use upoll::channel::{Receiver, bounded};
use upoll::{Epoll, Event, Events};

const JOB: u64 = 0;
const SOCKET: u64 = 1;

// ANCHOR: serve
fn serve(jobs: &Receiver<u64>, mut client: TcpStream) -> Result<usize, Box<dyn Error>> {
    let set = Epoll::new()?;
    set.add(jobs, Event::new(Events::IN, JOB))?;
    set.add(&client, Event::new(Events::IN, SOCKET))?;
    let (mut events, mut done) = ([Event::default(); 2], 0);
    loop {
        let ready = set.wait(&mut events, None)?;
        if events[..ready].iter().any(|event| event.data() == SOCKET) {
            return Ok(done);
        }
        for job in jobs.try_iter() {
            writeln!(client, "{}", job * job)?;
            done += 1;
        }
    }
}
// ANCHOR_END: serve

fn main() -> Result<(), Box<dyn Error>> {
    let (sender, jobs) = bounded(4)?;
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let mut client = TcpStream::connect(listener.local_addr()?)?;
    let (stream, _) = listener.accept()?;
    // The producers keep the channel open: with the last of them gone the server would see `HUP`.
    let producers: Vec<_> = (0..2)
        .map(|producer| {
            let sender = sender.clone();
            thread::spawn(move || {
                for job in (producer..6).step_by(2) {
                    sender.send(job).expect("the server is there");
                }
            })
        })
        .collect();
    let reader = thread::spawn(move || -> std::io::Result<u64> {
        let mut sum = 0;
        for line in BufReader::new(client.try_clone()?).lines().take(6) {
            sum += line?.parse::<u64>().expect("a number");
        }
        client.write_all(b"enough")?;
        Ok(sum)
    });
    let done = serve(&jobs, stream)?;
    for producer in producers {
        producer.join().expect("a producer does not panic");
    }
    let sum = reader.join().expect("the reader does not panic")?;
    assert_eq!((done, sum), (6, 1 + 4 + 9 + 16 + 25));
    println!("one wait served {done} jobs and heard the client");
    Ok(())
}
