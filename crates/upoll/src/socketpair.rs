//! `socketpair(2)`: two connected stream sockets, as of `unix(7)`.

use alloc::collections::VecDeque;
use alloc::vec::Vec;
use core::mem;
use core::ops::{Deref, DerefMut};

use bitflags::bitflags;

use crate::errno::Errno;
use crate::events::Events;
use crate::file::{File, PollTable, Pollable};
use crate::memory::SharedBox;
use crate::pages::{Gather, PAGE, Pages, Scatter, slices, slices_mut};
use crate::sync::{AtomicBool, AtomicU32, Mutex, MutexGuard, Ordering};
use crate::target::is_source;
use crate::wait::WaitQueue;

bitflags! {
    /// The kind of sockets to make: the flags in the type argument of `socketpair(2)`; and the
    /// status flags of a socket.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct SocketFlags: u32 {
        /// `SOCK_NONBLOCK`: blocking calls fail with `EAGAIN` instead of waiting.
        const NONBLOCK = 0o4_000;
        /// `SOCK_CLOEXEC`: meaningful once the socket has an fd; accepted here.
        const CLOEXEC = 0o2_000_000;
        const _ = !0;
    }
}

bitflags! {
    /// The ways to receive: the flags of `recv(2)` that a [`StreamSocket`] knows.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct ReceiveFlags: u32 {
        /// `MSG_PEEK`: what is received stays there.
        const PEEK = 0x2;
        /// `MSG_DONTWAIT`: `EAGAIN` instead of waiting.
        const DONTWAIT = 0x40;
        /// `MSG_WAITALL`: waits until the buffers are full; not together with `PEEK`.
        const WAITALL = 0x100;
    }
}

/// The half of a connection to shut down: the argument of `shutdown(2)`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Shutdown {
    /// `SHUT_RD`: nothing more is received.
    Read,
    /// `SHUT_WR`: nothing more is sent.
    Write,
    /// `SHUT_RDWR`: neither.
    Both,
}

/// The directions of a socket that are shut down.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
struct Halves {
    receiving: bool,
    sending: bool,
}

impl Halves {
    const BOTH: Halves = Halves {
        receiving: true,
        sending: true,
    };

    fn add(&mut self, more: Halves) {
        self.receiving |= more.receiving;
        self.sending |= more.sending;
    }
}

impl From<Shutdown> for Halves {
    fn from(how: Shutdown) -> Self {
        Halves {
            receiving: how != Shutdown::Write,
            sending: how != Shutdown::Read,
        }
    }
}

/// The send buffer of a new socket, in bytes as charged: the usual `net.core.wmem_default`.
const DEFAULT_SEND_BUFFER: usize = 212_992;
/// The largest send buffer that can be requested, with any capabilities: the usual
/// `net.core.wmem_max` of Linux 6.18.
const MAX_SEND_BUFFER: usize = 4 << 20;
/// The smallest send buffer (`SOCK_MIN_SNDBUF`).
const MIN_SEND_BUFFER: usize = 4_608;

/// The largest message that a write is cut into: a page less what Linux keeps at its end, and the
/// largest run of pages (`SKB_MAX_HEAD(0)`, `UNIX_SKB_FRAGS_SZ`).
const MAX_MESSAGE: usize = MAX_HEAD + 8 * PAGE;
const MAX_HEAD: usize = PAGE - SHARED_INFO;
/// `struct skb_shared_info`.
const SHARED_INFO: usize = 320;
/// `struct sk_buff`.
const HEADER: usize = 256;

/// Returns the charge of a message of `size` bytes to the send buffer until all of it is read
/// (`skb->truesize`). The part that does not fit into its first block is in whole pages.
const fn charge(size: usize) -> usize {
    let over = size.saturating_sub(MAX_HEAD).next_multiple_of(PAGE);
    let in_pages = if over < size { over } else { size };
    let block = (size - in_pages + SHARED_INFO).next_power_of_two();
    HEADER + block + in_pages.next_multiple_of(PAGE)
}

/// The smallest message that takes that much.
fn smallest(charged: usize) -> usize {
    let (mut low, mut high) = (1, MAX_MESSAGE);
    while low < high {
        let middle = usize::midpoint(low, high);
        if charge(middle) < charged {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    low
}

/// The contents of one socket of a pair, as [`StreamSocket::demote`] passes them on.
#[derive(Clone, Debug)]
pub struct SocketContents {
    /// The bytes that it received and nobody has read.
    pub bytes: Vec<u8>,
    /// The pieces that came in.
    pub messages: Vec<SocketMessage>,
    /// True for each half that is shut down: receiving, sending.
    pub is_shut: [bool; 2],
    /// True if a read fails with `ECONNRESET` once the bytes are read.
    pub is_reset: bool,
    /// [`StreamSocket::send_buffer`].
    pub send_buffer: usize,
}

/// A piece of the bytes that a socket received.
#[derive(Clone, Copy, Debug)]
pub struct SocketMessage {
    /// The number of its bytes that are unread.
    pub unread: usize,
    /// A size with which it takes as much of the sender's buffer as it does, not below `unread`.
    pub size: usize,
}

/// One piece of a write (`struct sk_buff`).
struct Message {
    unread: usize,
    charge: usize,
}

/// One socket (`struct unix_sock`).
struct Endpoint {
    /// The bytes that it received and nobody has read.
    bytes: Pages,
    /// The lengths of the messages in `bytes`, for the peer's account.
    messages: VecDeque<Message>,
    shut: Halves,
    /// The peer closed with unread bytes: `ECONNRESET`, once.
    is_reset: bool,
    /// The charge for its bytes that the peer has not read (`sk_wmem_alloc`).
    charged: usize,
    /// The limit of `charged` (`sk_sndbuf`).
    send_buffer: usize,
}

impl Endpoint {
    fn new() -> Self {
        Endpoint {
            bytes: Pages::default(),
            messages: VecDeque::new(),
            shut: Halves::default(),
            is_reset: false,
            charged: 0,
            send_buffer: DEFAULT_SEND_BUFFER,
        }
    }

    /// `unix_writable`: at most a quarter is used. Linux counts one byte that is always charged;
    /// in the middle of giving something back, two.
    #[inline]
    fn is_writable(&self, base: usize) -> bool {
        (self.charged + base) * 4 <= self.send_buffer
    }

    /// # Errors
    /// `ENOMEM`: there is no memory for a copy.
    fn contents(&self) -> Result<SocketContents, Errno> {
        let mut bytes = Vec::new();
        bytes
            .try_reserve_exact(self.bytes.bytes())
            .map_err(|_| Errno::NOMEM)?;
        let mut messages = Vec::new();
        messages
            .try_reserve_exact(self.messages.len())
            .map_err(|_| Errno::NOMEM)?;
        for page in self.bytes.views() {
            bytes.extend_from_slice(&page.bytes[page.read..]);
        }
        messages.extend(self.messages.iter().map(|message| SocketMessage {
            unread: message.unread,
            size: message.unread.max(smallest(message.charge)),
        }));
        Ok(SocketContents {
            bytes,
            messages,
            is_shut: [self.shut.receiving, self.shut.sending],
            is_reset: self.is_reset,
            send_buffer: self.send_buffer,
        })
    }

    /// Returns the events that a poll shows.
    #[inline]
    fn events(&self) -> Events {
        let mut events = Events::empty();
        events.set(Events::ERR, self.is_reset);
        events.set(Events::HUP, self.shut == Halves::BOTH);
        events.set(Events::RDHUP, self.shut.receiving);
        let readable = self.shut.receiving || !self.messages.is_empty();
        events.set(Events::IN | Events::RDNORM, readable);
        events.set(SPACE, self.is_writable(1));
        events
    }
}

/// The key of a wake for room to write, and what a poll shows then.
const SPACE: Events = Events::OUT.union(Events::WRNORM).union(Events::WRBAND);
/// The key of a wake for bytes to read.
const DATA: Events = Events::IN
    .union(Events::PRI)
    .union(Events::RDNORM)
    .union(Events::RDBAND);

/// Both sockets.
pub(crate) struct Pair {
    /// The innermost lock: nothing is locked while it is held. Polls do without it, for they run
    /// under the locks of sets, and wakes come after it is free.
    endpoints: Mutex<[Endpoint; 2]>,
    sides: [Side; 2],
    /// The bytes are elsewhere, and both are shut down. Written under the lock.
    is_stale: AtomicBool,
}

/// The part of a socket that polls use.
struct Side {
    /// [`Endpoint::events`]; written under the lock.
    events: AtomicU32,
    /// Readers and writers alike, as in Linux.
    queue: WaitQueue,
}

/// The index of a socket in its pair: 0 or 1.
pub(crate) type Me = usize;

/// Both endpoints under the lock, `me` first.
fn split(endpoints: &mut [Endpoint; 2], me: Me) -> (&mut Endpoint, &mut Endpoint) {
    let [first, second] = endpoints;
    if me == 0 {
        (first, second)
    } else {
        (second, first)
    }
}

impl Pair {
    /// Publishes the new state of both sockets to polls, and releases the lock. It is one half of
    /// the named pair: a waiter that registers later sees the state, and the following wakeup finds
    /// a waiter that registered before. A wakeup without a change is for waiters that know the
    /// state already.
    #[inline]
    fn publish(&self, endpoints: MutexGuard<'_, [Endpoint; 2]>) {
        for (side, endpoint) in self.sides.iter().zip(&*endpoints) {
            let events = endpoint.events().bits();
            if side.events.load(Ordering::Relaxed) != events {
                side.events.store(events, Ordering::Release);
            }
        }
    }

    #[inline]
    fn wake(&self, side: Me, key: Events) {
        self.sides[side].queue.wake(key);
    }

    /// `sk_state_change`: wakes all waiters, for any events.
    fn wake_all(&self, side: Me) {
        self.sides[side].queue.wake_all(Events::empty());
    }

    /// Sends the bytes that fit. Fails with the reason if some are left. Unless `is_first`, the call fails with
    /// `ESHUTDOWN` instead of `EPIPE`: the kernel raises no `SIGPIPE` if sending is shut down while a call waits
    /// for room.
    pub(crate) fn fill(&self, me: Me, from: &mut Gather<'_>, is_first: bool) -> Result<(), Errno> {
        let mut endpoints = self.endpoints.lock();
        let (mine, peer) = split(&mut endpoints, me);
        // A write that waited for room fails with the reset first, a later write with the shutdown.
        let ended = if !is_first && mem::take(&mut mine.is_reset) {
            Err(Errno::CONNRESET)
        } else if mine.shut.sending {
            let errno = match is_first {
                true => Errno::PIPE,
                false => Errno::SHUTDOWN,
            };
            Err(self.or_stale(errno))
        } else {
            Ok(())
        };
        let before = from.left();
        let mut error = None;
        while ended.is_ok() && from.left() > 0 && mine.charged < mine.send_buffer && error.is_none()
        {
            let asked = from.left().min(mine.send_buffer / 2 - 64).min(MAX_MESSAGE);
            if !from.has(asked) {
                error = Some(Errno::FAULT);
                break;
            }
            let size = match peer.messages.try_reserve(1) {
                Ok(()) => peer.bytes.append(from, asked),
                Err(_) => 0,
            };
            if size < asked {
                error = Some(Errno::NOBUFS);
            }
            if size == 0 {
                break;
            }
            let charge = charge(size);
            peer.messages.push_back(Message {
                unread: size,
                charge,
            });
            mine.charged += charge;
        }
        self.publish(endpoints);
        if from.left() < before {
            self.wake(1 - me, DATA);
        }
        if ended.is_ok() && from.left() > 0 {
            return Err(error.unwrap_or(Errno::AGAIN));
        }
        ended
    }

    #[inline]
    fn try_write(&self, me: Me, from: &mut Gather<'_>) -> Result<usize, Errno> {
        let asked = from.left();
        let ended = self.fill(me, from, true);
        match asked - from.left() {
            0 => ended.map(|()| 0),
            written => Ok(written),
        }
    }

    #[inline]
    pub(crate) fn try_read(&self, me: Me, into: &mut Scatter<'_, '_>) -> Result<usize, Errno> {
        if into.asks_for_nothing() {
            return Ok(0);
        }
        self.try_receive(me, into, true)
    }

    /// The same, also without room for a byte: then whether there is something to read. The bytes
    /// stay if it does not `take` them.
    #[inline]
    pub(crate) fn try_receive(
        &self,
        me: Me,
        into: &mut Scatter<'_, '_>,
        take: bool,
    ) -> Result<usize, Errno> {
        let asked = into.left();
        let shown = Events::from_bits_retain(self.sides[me].events.load(Ordering::SeqCst));
        if !shown.intersects(Events::IN | Events::ERR) {
            return Err(Errno::AGAIN);
        }
        let mut endpoints = self.endpoints.lock();
        let (mine, peer) = split(&mut endpoints, me);
        if mine.messages.is_empty() {
            if mem::take(&mut mine.is_reset) {
                self.publish(endpoints);
                return Err(Errno::CONNRESET);
            }
            return if !mine.shut.receiving {
                Err(Errno::AGAIN)
            } else if self.is_stale() {
                Err(Errno::STALE)
            } else {
                Ok(0)
            };
        }
        let most = into.whole(mine.messages.iter().map(|message| message.unread))?;
        if !take {
            mine.bytes.copy_to(into, most);
            return Ok(asked - into.left());
        }
        mine.bytes.take(into, most);
        let read = asked - into.left();
        let mut gives_back = false;
        let mut rest = read;
        while let Some(message) = mine.messages.front_mut()
            && rest > 0
        {
            let part = rest.min(message.unread);
            rest -= part;
            message.unread -= part;
            if message.unread == 0 {
                peer.charged -= message.charge;
                mine.messages.pop_front();
                gives_back = true;
            }
        }
        let wakes = gives_back && peer.is_writable(2);
        self.publish(endpoints);
        if wakes {
            self.wake(1 - me, SPACE);
        }
        Ok(read)
    }

    fn is_stale(&self) -> bool {
        self.is_stale.load(Ordering::SeqCst)
    }

    /// Returns the error of a call that found its direction shut down.
    fn or_stale(&self, errno: Errno) -> Errno {
        match self.is_stale() {
            true => Errno::STALE,
            false => errno,
        }
    }

    fn demote<E: From<Errno>>(
        &self,
        me: Me,
        transfer: impl FnOnce([SocketContents; 2]) -> Result<(), E>,
    ) -> Result<(), E> {
        let mut endpoints = self.endpoints.lock();
        if self.is_stale() {
            return Ok(());
        }
        let (mine, peer) = split(&mut endpoints, me);
        transfer([mine.contents()?, peer.contents()?])?;
        for endpoint in &mut *endpoints {
            *endpoint = Endpoint::new();
            endpoint.shut = Halves::BOTH;
        }
        self.is_stale.store(true, Ordering::SeqCst);
        self.publish(endpoints);
        self.wake_all(me);
        self.wake_all(1 - me);
        Ok(())
    }

    fn shutdown(&self, me: Me, how: Shutdown) {
        let halves = Halves::from(how);
        let mut endpoints = self.endpoints.lock();
        let (mine, peer) = split(&mut endpoints, me);
        mine.shut.add(halves);
        peer.shut.add(Halves {
            receiving: halves.sending,
            sending: halves.receiving,
        });
        self.publish(endpoints);
        self.wake_all(me);
        self.wake_all(1 - me);
    }

    fn set_send_buffer(&self, me: Me, bytes: usize) {
        let mut endpoints = self.endpoints.lock();
        let (mine, _) = split(&mut endpoints, me);
        mine.send_buffer = (bytes.min(MAX_SEND_BUFFER) * 2).max(MIN_SEND_BUFFER);
        let wakes = mine.is_writable(1);
        self.publish(endpoints);
        if wakes {
            self.wake(me, SPACE);
        }
    }

    fn close(&self, me: Me) {
        let mut endpoints = self.endpoints.lock();
        let (mine, peer) = split(&mut endpoints, me);
        mine.shut = Halves::BOTH;
        peer.shut = Halves::BOTH;
        let unread = mem::take(&mut mine.messages);
        let bytes = mem::take(&mut mine.bytes);
        peer.is_reset |= !unread.is_empty();
        // All of what the peer sent and is charged for was here.
        peer.charged = 0;
        let wakes = !unread.is_empty() && peer.is_writable(2);
        self.publish(endpoints);
        drop(bytes);
        self.wake_all(1 - me);
        if wakes {
            self.wake(1 - me, SPACE);
        }
    }

    #[cfg(any(feature = "std", upoll_loom))]
    pub(crate) fn queue(&self, me: Me) -> &WaitQueue {
        &self.sides[me].queue
    }
}

/// An open file description of a socket.
struct OpenSocket {
    pair: SharedBox<Pair>,
    me: Me,
    /// `NONBLOCK` or nothing.
    flags: AtomicU32,
}

impl Pollable for OpenSocket {
    #[inline]
    fn poll<'q>(&'q self, table: &mut PollTable<'q>) -> Events {
        let side = &self.pair.sides[self.me];
        table.register(&side.queue);
        Events::from_bits_retain(side.events.load(Ordering::SeqCst))
    }

    fn release(&self) {
        self.pair.close(self.me);
    }
}

/// `socketpair(AF_UNIX, SOCK_STREAM | flags, 0)`: two connected sockets. Memory is taken as bytes
/// come.
///
/// # Errors
/// `EINVAL`: `flags` holds a bit that [`SocketFlags`] does not name. `ENOMEM`: there is no memory for it.
///
/// # Example
/// ```
/// use upoll::{Errno, Shutdown, SocketFlags, socketpair};
///
/// let (one, other) = socketpair(SocketFlags::empty())?;
/// assert_eq!(one.try_write(b"hello"), Ok(5));
/// one.shutdown(Shutdown::Write);
/// let mut buffer = [0; 8];
/// assert_eq!(other.try_read(&mut buffer), Ok(5));
/// assert_eq!(other.try_read(&mut buffer), Ok(0));
/// assert_eq!(other.try_write(b"bye"), Ok(3));
/// # Ok::<(), Errno>(())
/// ```
pub fn socketpair(flags: SocketFlags) -> Result<(StreamSocket, StreamSocket), Errno> {
    if !(flags - (SocketFlags::NONBLOCK | SocketFlags::CLOEXEC)).is_empty() {
        return Err(Errno::INVAL);
    }
    let endpoints = [Endpoint::new(), Endpoint::new()];
    let side = |endpoint: &Endpoint| Side {
        events: AtomicU32::new(endpoint.events().bits()),
        queue: WaitQueue::new(),
    };
    let sides = [side(&endpoints[0]), side(&endpoints[1])];
    let pair = SharedBox::new(Pair {
        endpoints: Mutex::new(endpoints),
        sides,
        is_stale: AtomicBool::new(false),
    })?;
    let open = |me| {
        let flags = flags & SocketFlags::NONBLOCK;
        let file = File::try_new(OpenSocket {
            pair: pair.clone(),
            me,
            flags: AtomicU32::new(flags.bits()),
        })?;
        Ok::<_, Errno>(StreamSocket { file })
    };
    Ok((open(0)?, open(1)?))
}

/// A socket of a connected pair, with a stream of bytes in each direction.
///
/// Made by [`socketpair()`]. A clone is the same open file (`dup(2)`); the last to go closes the
/// socket.
///
/// Readiness is as in Linux 6.18 (`unix_poll`):
///
/// - `IN` and `RDNORM` iff there is something to read or receiving is shut down;
/// - `RDHUP` iff receiving is shut down, by whichever side;
/// - `HUP` iff both directions are, or the peer closed;
/// - `OUT`, `WRNORM` and `WRBAND` iff at most a quarter of the send buffer is used, shut down or
///   not;
/// - `ERR` iff the peer closed without having read everything, until a read has failed with that.
///
/// Every write wakes the peer, so that an edge-triggered interest reports each. A read wakes the
/// peer if it finished a message and at most a quarter is used.
///
/// Closing it wakes the peer. The peer reads the rest, and then gets the end of the stream, or
/// `ECONNRESET` if this side had not read everything. The bytes that this side had not read are
/// lost.
///
/// # Room
/// A write is cut into messages of up to 36 544 bytes, and less than half the send buffer. Each
/// message is charged to the sender until the last of it is read. The charge is the memory that
/// Linux 6.18 on x86-64 needs to keep it: 768 bytes for a message of one byte. (Linux built for
/// other hardware or with more kinds of networks charges small ones otherwise.) A message may be
/// sent while less than the send buffer is charged.
///
/// # Not there
/// Descriptors and credentials, urgent data, and socket options except the send buffer. A write
/// that fails with `EPIPE` raises no `SIGPIPE`: a caller that wants the signal raises it.
#[derive(Clone, Debug)]
#[doc(alias = "socketpair")]
#[doc(alias = "UnixStream")]
pub struct StreamSocket {
    file: File<OpenSocket>,
}

impl StreamSocket {
    /// Takes what there is, up to the size of `buffer`, without waiting.
    ///
    /// Returns 0 at the end: nothing is left and receiving is shut down. With an empty buffer it
    /// always returns 0.
    ///
    /// # Errors
    /// `EAGAIN`: there is nothing to read yet. `ECONNRESET`: the peer closed without having read
    /// everything; once, after the bytes that were left. `ESTALE`: the pair was [demoted](Self::demote).
    #[inline]
    pub fn try_read(&self, buffer: &mut [u8]) -> Result<usize, Errno> {
        let mut buffers = [buffer];
        self.file
            .pair
            .try_read(self.file.me, &mut Scatter::new(&mut buffers))
    }

    /// [`try_read`](Self::try_read) into several buffers, one after the other (`readv(2)`).
    ///
    /// # Errors
    /// As [`try_read`](Self::try_read). `ENOMEM`: there is no memory for a list of more than eight buffers.
    #[inline]
    pub fn try_read_vectored<B: DerefMut<Target = [u8]>>(
        &self,
        buffers: &mut [B],
    ) -> Result<usize, Errno> {
        let mut buffers = slices_mut(buffers)?;
        self.file
            .pair
            .try_read(self.file.me, &mut Scatter::new(&mut buffers))
    }

    /// Writes as many of `bytes` as fit without waiting, and returns their number.
    ///
    /// # Errors
    /// `EPIPE`: sending is shut down, or the peer closed; even if `bytes` is empty. `EAGAIN`: the
    /// send buffer is used up. `ENOBUFS`: there is no memory for the first byte. `ESTALE`: the pair was
    /// [demoted](Self::demote).
    #[inline]
    pub fn try_write(&self, bytes: &[u8]) -> Result<usize, Errno> {
        self.try_write_from(&mut Gather::new(&[bytes]))
    }

    /// [`try_write`](Self::try_write) from several buffers, as if they were one (`writev(2)`).
    ///
    /// # Errors
    /// As [`try_write`](Self::try_write), but a write of no bytes always returns 0. `ENOMEM`: there is no memory
    /// for a list of more than eight buffers.
    #[inline]
    pub fn try_write_vectored<B: Deref<Target = [u8]>>(
        &self,
        buffers: &[B],
    ) -> Result<usize, Errno> {
        let buffers = slices(buffers)?;
        if buffers.iter().all(|buffer| buffer.is_empty()) {
            return Ok(0);
        }
        self.try_write_from(&mut Gather::new(&buffers))
    }

    /// [`try_write_vectored`](Self::try_write_vectored) for a caller that asks for `missing` more bytes, from
    /// memory that cannot be read. A piece is sent whole or not at all, as in Linux.
    ///
    /// # Errors
    /// As [`try_write`](Self::try_write). `EFAULT`: nothing is sent.
    #[doc(hidden)]
    pub fn try_write_before_fault(
        &self,
        buffers: &[&[u8]],
        missing: usize,
    ) -> Result<usize, Errno> {
        self.try_write_from(&mut Gather::before(buffers, missing))
    }

    #[inline]
    fn try_write_from(&self, from: &mut Gather<'_>) -> Result<usize, Errno> {
        self.file.pair.try_write(self.file.me, from)
    }

    /// Ends one direction or both (`shutdown(2)`), for both sockets: what one socket no longer
    /// receives, the other no longer sends. Bytes that were sent before can still be read. Wakes
    /// all waiters of both.
    pub fn shutdown(&self, how: Shutdown) {
        self.file.pair.shutdown(self.file.me, how);
    }

    /// Returns an address that both sockets of a pair have in common.
    #[doc(hidden)]
    #[must_use]
    pub fn connection(&self) -> usize {
        SharedBox::as_ptr(&self.file.pair).addr()
    }

    /// Passes the contents of both sockets, this one's first, to `transfer`, which moves them elsewhere: to
    /// the kernel, when a second process is to share the pair. If that succeeds, both are
    /// empty and shut down for good; else nothing has happened. Other calls on them wait
    /// meanwhile. `transfer` is not called if they have been demoted before.
    ///
    /// From then on reads and writes fail with `ESTALE`, also if they began before and wait. A write that
    /// has written a part returns its length. Polls show both as hung up.
    ///
    /// # Errors
    /// `ENOMEM`: there is no memory for a copy of the contents. Further errors are those of `transfer`.
    pub fn demote<E: From<Errno>>(
        &self,
        transfer: impl FnOnce([SocketContents; 2]) -> Result<(), E>,
    ) -> Result<(), E> {
        self.file.pair.demote(self.file.me, transfer)
    }

    /// Returns whether the pair has been [demoted](Self::demote).
    #[must_use]
    pub fn is_stale(&self) -> bool {
        self.file.pair.is_stale()
    }

    /// Returns the number of bytes that there are to read (`FIONREAD`).
    #[must_use]
    pub fn available(&self) -> usize {
        self.file.pair.endpoints.lock()[self.file.me].bytes.bytes()
    }

    /// Returns the size of the send buffer (`SO_SNDBUF`), in bytes as charged.
    #[must_use]
    pub fn send_buffer(&self) -> usize {
        self.file.pair.endpoints.lock()[self.file.me].send_buffer
    }

    /// Makes the send buffer twice as large as `bytes` (`SO_SNDBUF`), but not smaller than 4608
    /// bytes nor larger than 8 MiB. Wakes writers if at most a quarter is used then.
    pub fn set_send_buffer(&self, bytes: usize) {
        self.file.pair.set_send_buffer(self.file.me, bytes);
    }

    /// Returns the status flags (`F_GETFL`).
    #[must_use]
    pub fn flags(&self) -> SocketFlags {
        SocketFlags::from_bits_retain(self.file.flags.load(Ordering::Relaxed))
    }

    /// Changes the status flag `NONBLOCK` (`F_SETFL`); others are ignored.
    pub fn set_flags(&self, flags: SocketFlags) {
        let flags = flags & SocketFlags::NONBLOCK;
        self.file.flags.store(flags.bits(), Ordering::Relaxed);
    }

    #[cfg(any(feature = "std", upoll_loom))]
    pub(crate) fn shared(&self) -> (&Pair, Me) {
        (&self.file.pair, self.file.me)
    }
}

is_source!(StreamSocket);
