//! Compares a TCP stack in user space with the kernel's: for the same exchange, an edge-triggered set of upoll
//! reports the same events as an edge-triggered kernel set.

use std::collections::BTreeMap;
use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4};
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, epoll, poll};
use rustix::net::{self, AddressFamily, Shutdown, SocketFlags, SocketType, sockopt};
use upoll::{Epoll, Event, Events, File, Watch};

use stack::{Listener, Socket, Stack};

#[allow(dead_code, reason = "the example uses more of it")]
#[path = "../examples/stack/mod.rs"]
mod stack;

const LISTENER: usize = 0;
const CLIENT: usize = 1;
const SERVER: usize = 2;

/// The port of the stack that listens, and one that does not.
const PORT: u16 = 7;
const CLOSED_PORT: u16 = 9;

const ALL: Events = Events::IN.union(Events::OUT).union(Events::RDHUP);
const SHOWN: Events = ALL.union(Events::ERR).union(Events::HUP);

/// The events that a set has reported, by member.
type Reports = BTreeMap<usize, Events>;

/// A listener, a client and a server of either world, each pair treated the same.
struct Twin {
    /// The events of each interest, with `ET`.
    interest: Events,
    stack: Stack,
    set: Epoll,
    listener: Option<File<Listener>>,
    sockets: [Option<File<Socket>>; 3],
    kernel_set: OwnedFd,
    kernel_sockets: [Option<OwnedFd>; 3],
    /// A port of the kernel that nobody listens on.
    _bound: OwnedFd,
    closed_port: SocketAddr,
    done: Vec<String>,
}

fn kernel_socket() -> OwnedFd {
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    net::socket_with(AddressFamily::INET, SocketType::STREAM, flags, None).unwrap()
}

fn address_of(fd: &OwnedFd) -> SocketAddr {
    SocketAddr::try_from(net::getsockname(fd).unwrap()).unwrap()
}

/// Returns how many bytes and ends the peer has not acknowledged yet (`SIOCOUTQ`).
fn unacknowledged(fd: &OwnedFd) -> i32 {
    const SIOCOUTQ: rustix::ioctl::Opcode = 0x5411;
    // SAFETY: the kernel writes an int for this request, whatever the socket's state.
    unsafe { rustix::ioctl::ioctl(fd, rustix::ioctl::Getter::<SIOCOUTQ, i32>::new()) }.unwrap()
}

impl Twin {
    fn new(wanted: Events) -> Self {
        let bound = kernel_socket();
        net::bind(&bound, &SocketAddrV4::new(Ipv4Addr::LOCALHOST, 0)).unwrap();
        Twin {
            interest: wanted | Events::ET,
            stack: Stack::new(),
            set: Epoll::new().unwrap(),
            listener: None,
            sockets: [None, None, None],
            kernel_set: epoll::create(epoll::CreateFlags::CLOEXEC).unwrap(),
            kernel_sockets: [None, None, None],
            closed_port: address_of(&bound),
            _bound: bound,
            done: Vec::new(),
        }
    }

    /// A client and a server that are connected.
    fn connected(wanted: Events) -> Self {
        let mut twin = Twin::new(wanted);
        twin.listen();
        twin.open();
        twin.connect();
        twin.accept();
        twin
    }

    fn watch_in_kernel(&mut self, member: usize, fd: OwnedFd) {
        let data = epoll::EventData::new_u64(member as u64);
        let flags = epoll::EventFlags::from_bits_retain(self.interest.bits());
        epoll::add(&self.kernel_set, &fd, data, flags).unwrap();
        self.kernel_sockets[member] = Some(fd);
    }

    fn watch(&mut self, member: usize, socket: File<Socket>) {
        self.set
            .add(&socket, Event::new(self.interest, member as u64))
            .unwrap();
        self.sockets[member] = Some(socket);
    }

    fn listen(&mut self) {
        let listener = self.stack.listen(PORT, 4);
        self.set
            .add(&listener, Event::new(self.interest, LISTENER as u64))
            .unwrap();
        self.listener = Some(listener);
        let fd = kernel_socket();
        net::bind(&fd, &SocketAddrV4::new(Ipv4Addr::LOCALHOST, 0)).unwrap();
        net::listen(&fd, 4).unwrap();
        self.watch_in_kernel(LISTENER, fd);
        self.compare("listen");
    }

    fn open(&mut self) {
        let socket = self.stack.socket();
        self.watch(CLIENT, socket);
        self.watch_in_kernel(CLIENT, kernel_socket());
        self.compare("open");
    }

    fn connect(&mut self) {
        let address = address_of(self.kernel_sockets[LISTENER].as_ref().unwrap());
        self.connect_to(PORT, address);
        self.compare("connect");
    }

    fn connect_to_nobody(&mut self) {
        self.connect_to(CLOSED_PORT, self.closed_port);
        self.compare("connect to nobody");
    }

    fn connect_to(&mut self, port: u16, address: SocketAddr) {
        self.sockets[CLIENT].as_ref().unwrap().connect(port);
        let connected = net::connect(self.kernel_sockets[CLIENT].as_ref().unwrap(), &address);
        assert_eq!(connected, Err(rustix::io::Errno::INPROGRESS));
    }

    fn accept(&mut self) {
        let socket = self
            .listener
            .as_ref()
            .unwrap()
            .accept()
            .expect("a connection has come");
        self.watch(SERVER, socket);
        let listener = self.kernel_sockets[LISTENER].as_ref().unwrap();
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        let fd = net::accept_with(listener, flags).unwrap();
        self.watch_in_kernel(SERVER, fd);
        self.compare("accept");
    }

    /// Applies the same call to the socket of both worlds, which must have the same result.
    fn call(
        &mut self,
        name: &str,
        member: usize,
        user: impl FnOnce(&File<Socket>) -> io::Result<usize>,
        kernel: impl FnOnce(&OwnedFd) -> rustix::io::Result<usize>,
    ) {
        let (Some(socket), Some(fd)) = (&self.sockets[member], &self.kernel_sockets[member]) else {
            return;
        };
        let user = user(socket).map_err(|error| error.kind());
        let kernel = kernel(fd).map_err(|error| error.kind());
        let done = format!("{name} {member}: {kernel:?}");
        assert_eq!(user, kernel, "after {:?}, {done}", self.done);
        self.compare(&done);
    }

    fn write(&mut self, member: usize) {
        self.call(
            "write",
            member,
            |socket| (&**socket).write(b"hello"),
            |fd| rustix::io::write(fd, b"hello"),
        );
    }

    fn read(&mut self, member: usize) {
        let mut buffers = [[0; 64]; 2];
        let [ours, kernels] = &mut buffers;
        self.call(
            "read",
            member,
            |socket| (&**socket).read(ours),
            |fd| rustix::io::read(fd, &mut kernels[..]),
        );
        assert_eq!(buffers[0], buffers[1]);
    }

    /// Writes until there is no room, and then reads all of it at the other end.
    fn fill_and_drain(&mut self, from: usize, to: usize) {
        let mut buffer = vec![0; 4096];
        let socket = |member: usize| self.sockets[member].as_ref().unwrap();
        let mut sent = 0;
        while let Ok(written) = (&**socket(from)).write(&buffer) {
            sent += written;
            self.stack.run(smoltcp::time::Instant::ZERO);
        }
        assert!(!socket(from).as_file_ref().is_ready(Events::OUT));
        while sent > 0 {
            sent -= (&**socket(to)).read(&mut buffer).unwrap();
            self.stack.run(smoltcp::time::Instant::ZERO);
        }
        let fd = |member: usize| self.kernel_sockets[member].as_ref().unwrap();
        let mut sent = 0;
        while let Ok(written) = rustix::io::write(fd(from), &buffer) {
            sent += written;
        }
        while sent > 0 {
            poll(&mut [PollFd::new(fd(to), PollFlags::IN)], None).unwrap();
            sent -= rustix::io::read(fd(to), &mut buffer).unwrap();
        }
        self.compare("fill and drain");
    }

    fn shutdown(&mut self, member: usize) {
        let shut_down = |socket: &File<Socket>| socket.shutdown_write().map(|()| 0);
        let shut_down_kernels = |fd: &OwnedFd| net::shutdown(fd, Shutdown::Write).map(|()| 0);
        self.call("shutdown", member, shut_down, shut_down_kernels);
    }

    fn close(&mut self, member: usize) {
        self.sockets[member] = None;
        self.kernel_sockets[member] = None;
        self.compare(&format!("close {member}"));
    }

    fn abort(&mut self, member: usize) {
        let (Some(socket), Some(fd)) = (
            self.sockets[member].take(),
            self.kernel_sockets[member].take(),
        ) else {
            return;
        };
        socket.abort();
        drop(socket);
        sockopt::set_socket_linger(&fd, Some(Duration::ZERO)).unwrap();
        drop(fd);
        self.compare(&format!("abort {member}"));
    }

    /// Waits until the stack and the kernel have finished, and compares the readiness and the reports of all members.
    fn compare(&mut self, done: &str) {
        self.done.push(done.to_owned());
        self.stack.run(smoltcp::time::Instant::ZERO);
        let ours = self.take_reports();
        let deadline = Instant::now() + Duration::from_secs(60);
        let mut kernels = Reports::new();
        loop {
            let is_settled = self.kernel_is_settled();
            self.take_kernel_reports(&mut kernels);
            if is_settled && kernels == ours {
                return;
            }
            assert!(
                Instant::now() < deadline,
                "after {:?}\nlevels: {:?}, the kernel's: {:?}\nreports: {ours:?}, the kernel's: {kernels:?}",
                self.done,
                self.levels(),
                self.kernel_levels(),
            );
            std::thread::yield_now();
        }
    }

    /// Returns whether everything that was sent has arrived, been acknowledged, and made the sockets as ready as ours.
    fn kernel_is_settled(&self) -> bool {
        let connected = || self.kernel_sockets[CLIENT..].iter().flatten();
        for fd in connected() {
            // Sends what is not acknowledged yet, and waits for a packet that is being worked on.
            sockopt::set_tcp_quickack(fd, true).unwrap();
        }
        // Nothing is acknowledged after a reset.
        let is_acknowledged =
            |fd| kernel_level(fd).contains(Events::HUP) || unacknowledged(fd) == 0;
        self.levels() == self.kernel_levels() && connected().all(is_acknowledged)
    }

    fn levels(&self) -> Reports {
        let socket = |member: usize| {
            let socket = self.sockets[member].as_ref()?;
            Some((member, socket.as_file_ref().ready() & SHOWN))
        };
        let listener = self.listener.as_ref();
        let listener = listener.map(|file| (LISTENER, file.as_file_ref().ready() & SHOWN));
        listener
            .into_iter()
            .chain([CLIENT, SERVER].into_iter().filter_map(socket))
            .collect()
    }

    fn kernel_levels(&self) -> Reports {
        let sockets = self.kernel_sockets.iter().enumerate();
        sockets
            .filter_map(|(at, fd)| Some((at, kernel_level(fd.as_ref()?))))
            .collect()
    }

    fn take_reports(&self) -> Reports {
        let mut events = [Event::default(); 8];
        let ready = self.set.try_wait(&mut events).unwrap();
        events[..ready]
            .iter()
            .map(|event| (event.data() as usize, event.events()))
            .collect()
    }

    fn take_kernel_reports(&self, reports: &mut Reports) {
        let zero = Timespec {
            tv_sec: 0,
            tv_nsec: 0,
        };
        let mut events: Vec<epoll::Event> = Vec::with_capacity(8);
        epoll::wait(
            &self.kernel_set,
            rustix::buffer::spare_capacity(&mut events),
            Some(&zero),
        )
        .unwrap();
        for event in events {
            let (data, flags) = (event.data, event.flags);
            *reports.entry(data.u64() as usize).or_default() |=
                Events::from_bits_retain(flags.bits());
        }
    }
}

fn kernel_level(fd: &OwnedFd) -> Events {
    let mut fds = [PollFd::new(
        fd,
        PollFlags::IN | PollFlags::OUT | PollFlags::RDHUP,
    )];
    poll(
        &mut fds,
        Some(&Timespec {
            tv_sec: 0,
            tv_nsec: 0,
        }),
    )
    .unwrap();
    Events::from_bits_retain(u32::from(fds[0].revents().bits()))
}

#[test]
fn a_connection_is_reported_to_the_listener_and_the_client() {
    Twin::connected(ALL);
}

#[test]
fn a_refused_connection_is_reported_and_its_error_is_read() {
    let mut twin = Twin::new(ALL);
    twin.open();
    twin.connect_to_nobody();
    twin.read(CLIENT);
    twin.read(CLIENT);
}

#[test]
fn each_arrival_of_data_is_an_edge() {
    let mut twin = Twin::connected(ALL);
    for _ in 0..3 {
        twin.write(CLIENT);
    }
    twin.read(SERVER);
    twin.read(SERVER);
    twin.write(SERVER);
    twin.read(CLIENT);
}

#[test]
fn room_is_an_edge_after_a_write_that_found_none() {
    let mut twin = Twin::connected(ALL);
    twin.fill_and_drain(CLIENT, SERVER);
    twin.fill_and_drain(SERVER, CLIENT);
}

#[test]
fn each_connection_is_an_edge_of_its_listener() {
    let mut twin = Twin::new(ALL);
    twin.listen();
    for _ in 0..3 {
        // The client before is closed, its connection stays in the backlog.
        twin.open();
        twin.connect();
    }
    twin.accept();
    twin.accept();
}

/// Every order of `calls` calls on a connection: data, half-close, close and reset, by either end.
fn exchange_in_each_order(wanted: Events, calls: u32) {
    type Step = fn(&mut Twin, usize);
    const STEPS: [Step; 5] = [
        Twin::write,
        Twin::read,
        Twin::shutdown,
        Twin::close,
        Twin::abort,
    ];
    const COUNT: usize = STEPS.len() * 2;
    for number in 0..COUNT.pow(calls) {
        let mut twin = Twin::connected(wanted);
        for call in 0..calls {
            let digit = number / COUNT.pow(call) % COUNT;
            STEPS[digit / 2](&mut twin, CLIENT + digit % 2);
        }
    }
}

#[test]
fn each_exchange_is_reported_as_the_kernel_reports_it() {
    exchange_in_each_order(ALL, 3);
}

#[test]
fn interests_in_some_events_are_reported_as_the_kernel_reports_them() {
    for wanted in [Events::IN, Events::OUT, Events::RDHUP, Events::empty()] {
        exchange_in_each_order(wanted, 2);
    }
}

/// No waiter uses an end up. Callbacks stand for threads that wait in the sets.
#[test]
fn a_reset_reaches_all_exclusive_waiters() {
    let now = smoltcp::time::Instant::ZERO;
    let stack = Stack::new();
    let (listener, client) = (stack.listen(80, 1), stack.socket());
    client.connect(80);
    stack.run(now);
    let server = listener.accept().unwrap();
    let sets = [(); 2].map(|()| Epoll::new().unwrap());
    let _waiting = sets.each_ref().map(|set| {
        let interest = Events::IN | Events::ET | Events::EXCLUSIVE;
        set.add(&server, Event::new(interest, 0)).unwrap();
        assert_eq!(set.try_wait(&mut [Event::default()]), Ok(0));
        Watch::new(set, Events::IN, |_| ()).unwrap()
    });
    client.abort();
    stack.run(now);
    for set in &sets {
        assert_eq!(set.try_wait(&mut [Event::default()]), Ok(1));
    }
}
