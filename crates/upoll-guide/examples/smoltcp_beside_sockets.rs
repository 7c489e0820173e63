//! One echo server for two worlds: a listener of a TCP stack in user space and one of the kernel, with their
//! connections, in one edge-triggered set.

mod stack;

use std::collections::HashMap;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::thread;

use smoltcp::time::Instant;
use stack::{Listener, Socket, Stack};
use upoll::{Epoll, Event, Events, File, PollFd};

const PORT: u16 = 7;
const KERNEL: u64 = 0;
const USER: u64 = 1;

// ANCHOR: echo
/// A connection of either world.
enum Link {
    Kernel(TcpStream),
    User(File<Socket>),
}

/// Echoes until the connection would block, as an edge-triggered interest demands. Returns whether it is over.
fn echo(mut link: impl Read + Write, pending: &mut Vec<u8>) -> io::Result<bool> {
    let mut buffer = [0; 4096];
    loop {
        while !pending.is_empty() {
            match link.write(pending) {
                Ok(written) => drop(pending.drain(..written)),
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(false),
                Err(error) => return Err(error),
            }
        }
        match link.read(&mut buffer) {
            Ok(0) => return Ok(true),
            Ok(read) => pending.extend(&buffer[..read]),
            Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(false),
            Err(error) => return Err(error),
        }
    }
}
// ANCHOR_END: echo

// ANCHOR: serve
/// Serves until `connections` connections have ended.
fn serve(
    stack: &Stack,
    kernel: TcpListener,
    user: File<Listener>,
    connections: usize,
) -> io::Result<()> {
    let edge = Events::IN | Events::OUT | Events::RDHUP | Events::ET;
    let set = Epoll::new()?;
    kernel.set_nonblocking(true)?;
    set.add(&kernel, Event::new(edge, KERNEL))?;
    set.add(&user, Event::new(edge, USER))?;
    let (mut links, mut next, mut ended) = (HashMap::new(), 2, 0);
    let mut events = [Event::default(); 16];
    while ended < connections {
        stack.run(Instant::now());
        let ready = set.wait(&mut events, stack.delay(Instant::now()))?;
        for event in &events[..ready] {
            let mut add = |link| {
                match &link {
                    Link::Kernel(stream) => set.add(stream, Event::new(edge, next))?,
                    Link::User(socket) => set.add(socket, Event::new(edge, next))?,
                }
                links.insert(next, (link, Vec::new()));
                next += 1;
                io::Result::Ok(())
            };
            match event.data() {
                KERNEL => {
                    while let Ok((stream, _)) = kernel.accept() {
                        stream.set_nonblocking(true)?;
                        add(Link::Kernel(stream))?;
                    }
                }
                USER => {
                    while let Some(socket) = user.accept() {
                        add(Link::User(socket))?;
                    }
                }
                number => {
                    let (link, pending) = links.get_mut(&number).expect("it is still served");
                    let is_over = match link {
                        Link::Kernel(stream) => echo(stream, pending),
                        Link::User(socket) => echo(&*socket, pending),
                    };
                    if is_over? {
                        // Closes it, and that takes it out of the set.
                        links.remove(&number);
                        ended += 1;
                    }
                }
            }
        }
    }
    stack.run(Instant::now());
    Ok(())
}
// ANCHOR_END: serve

fn call_in_kernel(to: SocketAddr) -> io::Result<String> {
    let mut stream = TcpStream::connect(to)?;
    stream.write_all(b"through the kernel")?;
    stream.shutdown(Shutdown::Write)?;
    io::read_to_string(stream)
}

fn call_in_user_space(stack: &Stack) -> io::Result<String> {
    let socket = stack.socket();
    socket.connect(PORT);
    wait_for(stack, &socket, Events::OUT)?;
    (&*socket).write_all(b"through a stack")?;
    socket.shutdown_write()?;
    wait_for(stack, &socket, Events::RDHUP)?;
    io::read_to_string(&*socket)
}

fn wait_for(stack: &Stack, socket: &File<Socket>, events: Events) -> io::Result<()> {
    let mut fds = [PollFd::new(socket, events)];
    loop {
        stack.run(Instant::now());
        if upoll::poll(&mut fds, stack.delay(Instant::now()))? > 0 {
            return Ok(());
        }
    }
}

fn main() -> io::Result<()> {
    let kernel = TcpListener::bind("127.0.0.1:0")?;
    let address = kernel.local_addr()?;
    let stack = Stack::new();
    let user = stack.listen(PORT, 4);
    thread::scope(|scope| {
        let server = scope.spawn(|| serve(&stack, kernel, user, 2));
        let in_kernel = scope.spawn(|| call_in_kernel(address));
        println!("{}", call_in_user_space(&stack)?);
        println!("{}", in_kernel.join().expect("no panic")?);
        server.join().expect("no panic")
    })
}
