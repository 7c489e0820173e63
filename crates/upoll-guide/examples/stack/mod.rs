//! A TCP stack in user space, smoltcp, whose sockets and listeners sets can watch.
//!
//! They show the events that Linux shows for its own TCP sockets, and wake when Linux does.

use std::collections::HashMap;
use std::io::{self, ErrorKind, Read, Write};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use smoltcp::iface::{Config, Interface, PollResult, SocketHandle, SocketSet};
use smoltcp::phy::{Loopback, Medium};
use smoltcp::socket::tcp::{self, State};
use smoltcp::time::Instant;
use smoltcp::wire::{HardwareAddress, IpAddress, IpCidr};
use upoll::{Events, File, PollTable, Pollable, WaitQueue};

const ADDRESS: IpAddress = IpAddress::v4(127, 0, 0, 1);
const BUFFER: usize = 16 * 1024;

/// The stack: an interface, its sockets, and what sets want to know of each.
#[derive(Clone)]
pub struct Stack(Arc<Mutex<Inner>>);

struct Inner {
    device: Loopback,
    interface: Interface,
    sockets: SocketSet<'static>,
    known: HashMap<SocketHandle, Known>,
    next_port: u16,
}

/// The state of a socket that smoltcp does not keep.
#[derive(Default)]
struct Known {
    /// The queue of the file that the socket belongs to: its own, or its listener's. None once that is closed.
    queue: Option<Arc<WaitQueue>>,
    is_listeners: bool,
    was_connected: bool,
    /// The reason why the connection was lost, until a call has failed with it: `SO_ERROR`.
    error: Option<ErrorKind>,
    /// Somebody found no room to write.
    is_full: bool,
}

/// One end of a connection, or a socket that is not connected yet.
pub struct Socket {
    stack: Stack,
    handle: SocketHandle,
    queue: Arc<WaitQueue>,
}

/// A listening port.
pub struct Listener {
    stack: Stack,
    port: u16,
    backlog: Mutex<Vec<SocketHandle>>,
    queue: Arc<WaitQueue>,
}

impl Stack {
    /// A stack with the address 127.0.0.1 on a loopback device of its own.
    pub fn new() -> Self {
        let mut device = Loopback::new(Medium::Ip);
        let config = Config::new(HardwareAddress::Ip);
        let mut interface = Interface::new(config, &mut device, Instant::ZERO);
        interface.update_ip_addrs(|addresses| {
            addresses
                .push(IpCidr::new(ADDRESS, 8))
                .expect("there is room for one address");
        });
        Stack(Arc::new(Mutex::new(Inner {
            device,
            interface,
            sockets: SocketSet::new(Vec::new()),
            known: HashMap::new(),
            next_port: 49152,
        })))
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.0.lock().expect("nothing panics with the lock held")
    }

    /// A socket that is not connected.
    pub fn socket(&self) -> File<Socket> {
        let queue = Arc::new(WaitQueue::new());
        let handle = self.lock().open(&queue, false);
        File::new(Socket {
            stack: self.clone(),
            handle,
            queue,
        })
    }

    /// Listens on `port`, with room for `backlog` connections that are not accepted yet.
    pub fn listen(&self, port: u16, backlog: usize) -> File<Listener> {
        let queue = Arc::new(WaitQueue::new());
        let backlog = (0..backlog)
            .map(|_| self.lock().listening(port, &queue))
            .collect();
        File::new(Listener {
            stack: self.clone(),
            port,
            backlog: Mutex::new(backlog),
            queue,
        })
    }

    // ANCHOR: run
    /// Lets the stack send and receive until it has nothing left to do at the time `now`, and wakes the
    /// waiters of each socket that has changed.
    pub fn run(&self, now: Instant) {
        let mut wakes = Vec::new();
        let mut inner = self.lock();
        loop {
            let before = inner.states();
            let Inner {
                device,
                interface,
                sockets,
                ..
            } = &mut *inner;
            if interface.poll(now, device, sockets) == PollResult::None {
                break;
            }
            for (handle, state, received) in before {
                inner.find_wakes(handle, state, received, &mut wakes);
            }
        }
        inner.forget_closed();
        drop(inner);
        // Without the lock: a thread that is woken may poll a socket, which takes it.
        for (queue, key) in wakes {
            if key.is_empty() {
                // A connection is made, ends, or is reset. No waiter uses that up.
                queue.wake_all(key);
            } else {
                queue.wake(key);
            }
        }
    }
    // ANCHOR_END: run

    /// Returns after which time [`run`](Self::run) must be called again even if nothing happens.
    pub fn delay(&self, now: Instant) -> Option<Duration> {
        let inner = &mut *self.lock();
        let delay = inner.interface.poll_delay(now, &inner.sockets)?;
        Some(Duration::from_micros(delay.total_micros()))
    }
}

impl Inner {
    fn open(&mut self, queue: &Arc<WaitQueue>, is_listeners: bool) -> SocketHandle {
        let buffer = || tcp::SocketBuffer::new(vec![0; BUFFER]);
        let mut socket = tcp::Socket::new(buffer(), buffer());
        socket.set_ack_delay(None);
        socket.set_nagle_enabled(false);
        let handle = self.sockets.add(socket);
        let known = Known {
            queue: Some(queue.clone()),
            is_listeners,
            was_connected: is_listeners,
            ..Known::default()
        };
        self.known.insert(handle, known);
        handle
    }

    fn listening(&mut self, port: u16, queue: &Arc<WaitQueue>) -> SocketHandle {
        let handle = self.open(queue, true);
        self.tcp(handle).listen(port).expect("the port is not 0");
        handle
    }

    fn tcp(&mut self, handle: SocketHandle) -> &mut tcp::Socket<'static> {
        self.sockets.get_mut(handle)
    }

    fn known(&mut self, handle: SocketHandle) -> &mut Known {
        self.known
            .get_mut(&handle)
            .expect("each socket is known until it is forgotten")
    }

    fn states(&mut self) -> Vec<(SocketHandle, State, usize)> {
        let handles: Vec<_> = self.known.keys().copied().collect();
        let state = |handle| {
            let socket = self.tcp(handle);
            (handle, socket.state(), socket.recv_queue())
        };
        handles.into_iter().map(state).collect()
    }

    // ANCHOR: wakes
    /// Adds the wakes that Linux makes for what has happened to a socket since it was in the state `before` and
    /// held `received` bytes.
    fn find_wakes(
        &mut self,
        handle: SocketHandle,
        before: State,
        received: usize,
        wakes: &mut Vec<(Arc<WaitQueue>, Events)>,
    ) {
        let socket = self.tcp(handle);
        let (state, arrived) = (socket.state(), socket.recv_queue() > received);
        let has_room = has_room(socket);
        let known = self.known(handle);
        let Some(queue) = &known.queue else {
            if arrived {
                // Nobody is left to read this.
                self.tcp(handle).abort();
            }
            return;
        };
        let mut wake = |key| wakes.push((queue.clone(), key));
        if known.is_listeners {
            if !is_connected(before) && is_connected(state) {
                wake(Events::IN | Events::RDNORM);
            }
            return;
        }
        if before != state {
            if state == State::Closed {
                known.error = match before {
                    State::LastAck | State::TimeWait => None,
                    State::SynSent => Some(ErrorKind::ConnectionRefused),
                    State::CloseWait => Some(ErrorKind::BrokenPipe),
                    _ => Some(ErrorKind::ConnectionReset),
                };
            }
            // A change of state wakes for everything: no key.
            wake(Events::empty());
        } else if arrived {
            wake(Events::IN | Events::RDNORM);
        }
        if known.is_full && has_room {
            known.is_full = false;
            wake(Events::OUT | Events::WRNORM);
        }
    }
    // ANCHOR_END: wakes

    /// Removes sockets that no file refers to any more and whose connections have ended.
    fn forget_closed(&mut self) {
        let Inner { sockets, known, .. } = self;
        known.retain(|&handle, known| {
            let keep = known.queue.is_some() || sockets.get::<tcp::Socket>(handle).is_open();
            if !keep {
                sockets.remove(handle);
            }
            keep
        });
    }

    /// Ends a connection as Linux does when its last fd is closed.
    fn close(&mut self, handle: SocketHandle) {
        self.known(handle).queue = None;
        let socket = self.tcp(handle);
        // Bytes that nobody will read are lost, and the peer is told so by a reset.
        if socket.recv_queue() > 0 {
            socket.abort()
        } else {
            socket.close()
        }
    }
}

/// Returns whether Linux would call the socket writable: if a third of its buffer is free.
fn has_room(socket: &tcp::Socket<'_>) -> bool {
    let free = socket.send_capacity() - socket.send_queue();
    socket.may_send() && free >= socket.send_queue() / 2
}

// ANCHOR: poll
impl Pollable for Socket {
    fn poll<'q>(&'q self, table: &mut PollTable<'q>) -> Events {
        table.register(&self.queue);
        let mut inner = self.stack.lock();
        let known = inner.known(self.handle);
        let (was_connected, has_failed) = (known.was_connected, known.error.is_some());
        let socket = inner.tcp(self.handle);
        let state = socket.state();
        if state == State::SynSent {
            return Events::empty();
        }
        let is_closed = state == State::Closed;
        let peer_is_done = was_connected && (is_closed || !peer_may_send(state));
        let we_are_done = is_closed || !socket.may_send();
        let mut events = Events::empty();
        events.set(
            Events::IN | Events::RDNORM,
            socket.recv_queue() > 0 || peer_is_done,
        );
        events.set(Events::RDHUP, peer_is_done);
        events.set(Events::HUP, is_closed || (peer_is_done && we_are_done));
        events.set(Events::ERR, has_failed);
        let is_writable = we_are_done || has_room(socket);
        events.set(Events::OUT | Events::WRNORM, is_writable);
        if !is_writable {
            inner.known(self.handle).is_full = true;
        }
        events
    }

    fn release(&self) {
        self.stack.lock().close(self.handle);
    }
}
// ANCHOR_END: poll

/// Returns whether a socket that has listened has got a connection.
fn is_connected(state: State) -> bool {
    !matches!(state, State::Listen | State::SynReceived)
}

fn peer_may_send(state: State) -> bool {
    matches!(
        state,
        State::Established | State::FinWait1 | State::FinWait2
    )
}

impl Socket {
    /// Begins to connect to a port of the stack. The socket is writable once it is connected.
    pub fn connect(&self, port: u16) {
        let mut inner = self.stack.lock();
        let local = inner.next_port;
        inner.next_port += 1;
        inner.known(self.handle).was_connected = true;
        let Inner {
            interface, sockets, ..
        } = &mut *inner;
        let socket: &mut tcp::Socket = sockets.get_mut(self.handle);
        let connected = socket.connect(interface.context(), (ADDRESS, port), local);
        connected.expect("the ports are not 0 and the socket is new");
    }

    /// Sends the peer an end of file: `shutdown(SHUT_WR)`. Fails with `NotConnected` if the connection has ended.
    pub fn shutdown_write(&self) -> io::Result<()> {
        let mut inner = self.stack.lock();
        let socket = inner.tcp(self.handle);
        let is_over = matches!(socket.state(), State::Closed | State::TimeWait);
        socket.close();
        drop(inner);
        // Linux wakes in any case.
        self.queue.wake_all(Events::empty());
        match is_over {
            true => Err(ErrorKind::NotConnected.into()),
            false => Ok(()),
        }
    }

    /// Ends the connection by a reset, as closing the fd does with an `SO_LINGER` of 0 seconds.
    pub fn abort(&self) {
        self.stack.lock().tcp(self.handle).abort();
    }

    fn take_error(&self, inner: &mut Inner) -> io::Result<()> {
        let error = inner.known(self.handle).error.take();
        error.map_or(Ok(()), |kind| Err(kind.into()))
    }
}

/// Returns `WouldBlock` if nothing has arrived.
impl Read for &Socket {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let mut inner = self.stack.lock();
        let socket = inner.tcp(self.handle);
        if socket.recv_queue() > 0 {
            return socket.recv_slice(buffer).map_err(io::Error::other);
        }
        let state = socket.state();
        if inner.known(self.handle).error != Some(ErrorKind::BrokenPipe) {
            self.take_error(&mut inner)?;
        }
        match state == State::SynSent || peer_may_send(state) {
            true => Err(ErrorKind::WouldBlock.into()),
            false => Ok(0),
        }
    }
}

/// Returns `WouldBlock` if there is no room.
impl Write for &Socket {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let mut inner = self.stack.lock();
        self.take_error(&mut inner)?;
        let socket = inner.tcp(self.handle);
        if socket.state() != State::SynSent && !socket.may_send() {
            return Err(ErrorKind::BrokenPipe.into());
        }
        if !socket.can_send() {
            inner.known(self.handle).is_full = true;
            return Err(ErrorKind::WouldBlock.into());
        }
        socket.send_slice(bytes).map_err(io::Error::other)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Pollable for Listener {
    fn poll<'q>(&'q self, table: &mut PollTable<'q>) -> Events {
        table.register(&self.queue);
        let (backlog, mut inner) = self.lock();
        match first_connected(&backlog, &mut inner) {
            Some(_) => Events::IN | Events::RDNORM,
            None => Events::empty(),
        }
    }

    fn release(&self) {
        let (backlog, mut inner) = self.lock();
        for &handle in &*backlog {
            inner.known(handle).queue = None;
            inner.tcp(handle).abort();
        }
    }
}

impl Listener {
    /// Takes the locks, in the order in which all calls take them.
    fn lock(&self) -> (MutexGuard<'_, Vec<SocketHandle>>, MutexGuard<'_, Inner>) {
        let backlog = self.backlog.lock();
        let backlog = backlog.expect("nothing panics with the lock held");
        (backlog, self.stack.lock())
    }

    // ANCHOR: accept
    /// Returns the next connection, or None if there is none now.
    pub fn accept(&self) -> Option<File<Socket>> {
        let (mut backlog, mut inner) = self.lock();
        let at = first_connected(&backlog, &mut inner)?;
        let handle = backlog.remove(at);
        backlog.push(inner.listening(self.port, &self.queue));
        let queue = Arc::new(WaitQueue::new());
        let known = inner.known(handle);
        (known.queue, known.is_listeners) = (Some(queue.clone()), false);
        Some(File::new(Socket {
            stack: self.stack.clone(),
            handle,
            queue,
        }))
    }
    // ANCHOR_END: accept
}

fn first_connected(backlog: &[SocketHandle], inner: &mut Inner) -> Option<usize> {
    let mut handles = backlog.iter();
    handles.position(|&handle| is_connected(inner.tcp(handle).state()))
}
