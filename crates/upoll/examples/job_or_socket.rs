//! Waits for a job or a socket: one call waits for a channel and for a TCP client.
//!
//! Threads of the process send jobs through the channel. The server writes the result of each job to the
//! client, until the client writes something.

use std::error::Error;
use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::thread;

use upoll::channel::{Receiver, TryRecvError, bounded};
use upoll::{Epoll, Errno, Event, Events};

const JOB: u64 = 0;
const SOCKET: u64 = 1;

// ANCHOR: serve
/// Writes the result of each job to the client, until that writes or leaves. Returns how many jobs it did, and how
/// often it waited.
pub fn serve(
    jobs: &Receiver<u64>,
    mut client: TcpStream,
) -> Result<(usize, usize), Box<dyn Error>> {
    let set = Epoll::new()?;
    set.add(jobs, Event::new(Events::IN, JOB))?;
    set.add(&client, Event::new(Events::IN, SOCKET))?;
    let (mut events, mut done, mut waits) = ([Event::default(); 2], 0, 0);
    loop {
        let ready = match set.wait(&mut events, None) {
            // A signal handler ran.
            Err(Errno::INTR) => continue,
            ready => ready?,
        };
        waits += 1;
        for event in &events[..ready] {
            if event.data() == SOCKET {
                return Ok((done, waits));
            }
            loop {
                match jobs.try_recv() {
                    Ok(job) => {
                        writeln!(client, "{}", job * job)?;
                        done += 1;
                    }
                    Err(TryRecvError::Empty) => break,
                    // `HUP` stays: the set would report it again at once.
                    Err(TryRecvError::Disconnected) => {
                        set.delete(jobs)?;
                        break;
                    }
                }
            }
        }
    }
}
// ANCHOR_END: serve

#[allow(
    dead_code,
    reason = "the test of this example has a main function of its own"
)]
fn main() -> Result<(), Box<dyn Error>> {
    let (sender, jobs) = bounded(4)?;
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let mut client = TcpStream::connect(listener.local_addr()?)?;
    let (stream, _) = listener.accept()?;
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
    drop(sender);
    let (done, _) = serve(&jobs, stream)?;
    for producer in producers {
        producer.join().expect("a producer does not panic");
    }
    let sum = reader.join().expect("the reader does not panic")?;
    assert_eq!((done, sum), (6, 1 + 4 + 9 + 16 + 25));
    println!("one wait served {done} jobs and heard the client");
    Ok(())
}
