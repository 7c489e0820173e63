//! The example of a channel beside a socket, without its senders.
#![cfg(feature = "std")]
#![cfg(not(upoll_loom))]

#[path = "../examples/job_or_socket.rs"]
mod job_or_socket;

use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::thread;

use upoll::channel::bounded;

/// While the client stays, the server sleeps until the client speaks.
#[test]
fn a_server_whose_channel_is_closed_does_not_spin() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (stream, _) = listener.accept().unwrap();
    let (sender, jobs) = bounded(4).unwrap();
    for job in 1..=3 {
        sender.send(job).unwrap();
    }
    drop(sender);
    let server = thread::spawn(move || job_or_socket::serve(&jobs, stream).unwrap());
    let lines = BufReader::new(client.try_clone().unwrap()).lines();
    let squares: Vec<_> = lines.take(3).map(Result::unwrap).collect();
    assert_eq!(squares, ["1", "4", "9"]);
    // Time for a server that spins. A server that sleeps does not need it.
    thread::sleep(std::time::Duration::from_millis(20));
    client.write_all(b"enough").unwrap();
    let (done, waits) = server.join().unwrap();
    assert_eq!(done, 3);
    // One for the jobs, one for the client. A signal handler does not count.
    assert!(waits <= 2, "{waits} waits");
}
