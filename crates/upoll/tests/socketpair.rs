//! Connected stream sockets of the host kernel and of upoll, with every result compared, and
//! threads that block in them.
#![cfg(feature = "std")]
#![cfg(not(upoll_loom))]

mod random;
mod threads;
mod twin;

use std::sync::Arc;
use std::thread;

use proptest::prelude::*;
use random::{config, confirm};
use upoll::{Errno, Events, FileRef, Shutdown, SocketFlags, StreamSocket, socketpair};

use threads::{asleep, until_asleep};
use twin::changes::{self, ops};
use twin::{Fd, Pattern, Sets, events, kernel_pair, kernel_shutdown, result, same, signal};

const IN: Events = Events::IN;
const OUT: Events = Events::OUT;
const ET: Events = Events::ET;
const READABLE: Events = IN.union(Events::RDNORM);
const WRITABLE: Events = OUT.union(Events::WRNORM).union(Events::WRBAND);

fn kernel_send_buffer(fd: &Fd) -> usize {
    let (mut bytes, mut size) = (0_i32, 4);
    // SAFETY: an int is written.
    let got = unsafe {
        libc::getsockopt(
            fd.raw(),
            libc::SOL_SOCKET,
            libc::SO_SNDBUF,
            (&raw mut bytes).cast(),
            &raw mut size,
        )
    };
    result(got as isize).unwrap();
    usize::try_from(bytes).unwrap()
}

fn set_kernel_send_buffer(fd: &Fd, bytes: usize) {
    let bytes = i32::try_from(bytes).unwrap();
    // SAFETY: an int is read.
    let set = unsafe {
        libc::setsockopt(
            fd.raw(),
            libc::SOL_SOCKET,
            libc::SO_SNDBUF,
            (&raw const bytes).cast(),
            4,
        )
    };
    result(set as isize).unwrap();
}

/// Returns whether the host charges a message of one byte as documented. With another kernel
/// configuration the charge differs, and only buffers far from full can be compared.
fn host_charges_as_documented() -> bool {
    let [one, _other] = kernel_pair(SocketFlags::NONBLOCK).unwrap();
    kernel_send_buffer(&one) == 212_992 && {
        let mut charged = 0_i32;
        one.write(&[0]).unwrap();
        // SAFETY: an int is written.
        result(unsafe { libc::ioctl(one.raw(), libc::TIOCOUTQ, &raw mut charged) } as isize)
            .unwrap();
        charged == 768
    }
}

/// A pair in both worlds, with each socket that is still open.
struct Twin {
    sockets: [Option<(StreamSocket, Fd)>; 2],
    patterns: [Pattern; 2],
    /// Alternates between the calls that may block, on a nonblocking socket, and those that never
    /// do.
    turn: bool,
}

impl Twin {
    fn new() -> Self {
        let (one, other) = socketpair(SocketFlags::NONBLOCK).unwrap();
        let [kernel_one, kernel_other] = kernel_pair(SocketFlags::NONBLOCK).unwrap();
        Twin {
            sockets: [Some((one, kernel_one)), Some((other, kernel_other))],
            patterns: [Pattern::new(), Pattern::new()],
            turn: false,
        }
    }

    fn turn(&mut self) -> bool {
        self.turn = !self.turn;
        self.turn
    }

    #[track_caller]
    fn write(&mut self, at: usize, count: usize) -> Option<Result<usize, Errno>> {
        let turn = self.turn();
        let (upoll, kernel) = self.sockets[at].as_ref()?;
        let bytes = self.patterns[at].bytes(count);
        let written = if turn {
            upoll.write(&bytes)
        } else {
            upoll.try_write(&bytes)
        };
        Some(same(("write", at, count), written, kernel.write(&bytes)))
    }

    #[track_caller]
    fn write_vectored(
        &mut self,
        at: usize,
        first: usize,
        second: usize,
    ) -> Option<Result<usize, Errno>> {
        let turn = self.turn();
        let (upoll, kernel) = self.sockets[at].as_ref()?;
        let bytes = self.patterns[at].bytes(first + second);
        let parts = [&bytes[..first], &bytes[first..]];
        let written = if turn {
            upoll.write_vectored(&parts)
        } else {
            upoll.try_write_vectored(&parts)
        };
        let what = ("writev", at, first, second);
        Some(same(what, written, kernel.writev(parts)))
    }

    #[track_caller]
    fn read(&mut self, at: usize, count: usize) -> Option<Result<usize, Errno>> {
        let turn = self.turn();
        let (upoll, kernel) = self.sockets[at].as_ref()?;
        let (mut ours, mut theirs) = (vec![0; count], vec![0; count]);
        let read = if turn {
            upoll.read(&mut ours)
        } else {
            upoll.try_read(&mut ours)
        };
        let read = same(("read", at, count), read, kernel.read(&mut theirs));
        assert!(ours == theirs, "other bytes than the kernel's");
        Some(read)
    }

    #[track_caller]
    fn read_vectored(
        &mut self,
        at: usize,
        first: usize,
        second: usize,
    ) -> Option<Result<usize, Errno>> {
        let turn = self.turn();
        let (upoll, kernel) = self.sockets[at].as_ref()?;
        let mut ours = vec![0; first + second];
        let mut theirs = ours.clone();
        let (head, tail) = ours.split_at_mut(first);
        let read = if turn {
            upoll.read_vectored(&mut [head, tail])
        } else {
            upoll.try_read_vectored(&mut [head, tail])
        };
        let (head, tail) = theirs.split_at_mut(first);
        let what = ("readv", at, first, second);
        let read = same(what, read, kernel.readv([head, tail]));
        assert!(ours == theirs, "other bytes than the kernel's");
        Some(read)
    }

    fn end(&self, at: usize) -> Option<(FileRef<'_>, &Fd)> {
        let (upoll, kernel) = self.sockets[at].as_ref()?;
        Some((upoll.as_file_ref(), kernel))
    }

    #[track_caller]
    fn events(&self, at: usize) -> Option<Events> {
        let (upoll, kernel) = self.end(at)?;
        Some(same(("poll", at), events(upoll), kernel.events()))
    }

    /// Compares unread bytes, flags and send buffer.
    #[track_caller]
    fn look(&self, at: usize) -> Option<usize> {
        let (upoll, kernel) = self.sockets[at].as_ref()?;
        let flags = u32::try_from(kernel.fcntl(libc::F_GETFL, 0).unwrap()).unwrap();
        let flags = SocketFlags::from_bits_retain(flags) & SocketFlags::NONBLOCK;
        same("F_GETFL", upoll.flags(), flags);
        same("SO_SNDBUF", upoll.send_buffer(), kernel_send_buffer(kernel));
        Some(same("FIONREAD", upoll.available(), kernel.available()))
    }

    fn shutdown(&self, at: usize, how: Shutdown) -> Option<()> {
        let (upoll, kernel) = self.sockets[at].as_ref()?;
        upoll.shutdown(how);
        kernel_shutdown(kernel, how);
        Some(())
    }

    fn set_send_buffer(&self, at: usize, bytes: usize) -> Option<()> {
        let (upoll, kernel) = self.sockets[at].as_ref()?;
        upoll.set_send_buffer(bytes);
        set_kernel_send_buffer(kernel, bytes);
        Some(())
    }

    fn close(&mut self, at: usize) {
        self.sockets[at] = None;
    }

    fn ctl(&self, op: i32, sets: &Sets, at: usize, events: Events) -> Option<Result<(), Errno>> {
        let (upoll, kernel) = self.end(at)?;
        Some(sets.ctl(op, upoll, kernel, events, at as u64))
    }

    fn watch(&self, at: usize, events: Events) -> Sets {
        let sets = Sets::new();
        self.ctl(libc::EPOLL_CTL_ADD, &sets, at, events)
            .unwrap()
            .unwrap();
        sets
    }
}

#[derive(Clone, Debug)]
enum Step {
    Write(usize, usize),
    WriteVectored(usize, usize, usize),
    Read(usize, usize),
    ReadVectored(usize, usize, usize),
    Shutdown(usize, Shutdown),
    SetSendBuffer(usize, usize),
    Look(usize),
    Poll(usize),
    Ctl(i32, bool, usize, Events),
    Wait(bool),
    Close(usize),
}

fn sizes() -> impl Strategy<Value = usize> {
    prop_oneof![
        2 => Just(0_usize),
        8 => 1..300_usize,
        6 => prop::sample::select(vec![
            192_usize, 193, 704, 705, 1_728, 1_729, 3_776, 3_777, 4_288, 4_289, 36_544, 36_545,
        ]),
        6 => 1..50_000_usize,
        2 => 50_000..300_000_usize,
    ]
}

fn interests() -> impl Strategy<Value = Events> {
    let wanted = [
        IN,
        OUT,
        IN | OUT,
        Events::empty(),
        Events::RDHUP,
        Events::WRBAND | Events::RDNORM,
    ];
    changes::interests(&wanted, &[])
}

fn steps() -> impl Strategy<Value = Step> {
    let at = || 0..2_usize;
    let how = prop::sample::select(vec![Shutdown::Read, Shutdown::Write, Shutdown::Both]);
    let buffer = prop_oneof![
        4 => 0..20_000_usize,
        1 => 20_000..200_000_usize,
    ];
    prop_oneof![
        24 => (at(), sizes()).prop_map(|(at, count)| Step::Write(at, count)),
        4 => (at(), sizes(), sizes()).prop_map(|(at, a, b)| Step::WriteVectored(at, a, b)),
        24 => (at(), sizes()).prop_map(|(at, count)| Step::Read(at, count)),
        4 => (at(), sizes(), sizes()).prop_map(|(at, a, b)| Step::ReadVectored(at, a, b)),
        1 => (at(), how).prop_map(|(at, how)| Step::Shutdown(at, how)),
        3 => (at(), buffer).prop_map(|(at, bytes)| Step::SetSendBuffer(at, bytes)),
        6 => at().prop_map(Step::Look),
        8 => at().prop_map(Step::Poll),
        8 => (ops(), any::<bool>(), at(), interests())
            .prop_map(|(op, set, at, events)| Step::Ctl(op, set, at, events)),
        16 => any::<bool>().prop_map(Step::Wait),
        1 => at().prop_map(Step::Close),
    ]
}

/// Runs the steps. Without `to_the_brim` the send buffers never come near a quarter of their size.
fn run(steps: &[Step], to_the_brim: bool) {
    let mut twin = Twin::new();
    // The first set exists from the beginning and is edge-triggered. The steps make and use the
    // other one.
    let sets = [twin.watch(0, IN | OUT | ET), Sets::new()];
    twin.ctl(
        libc::EPOLL_CTL_ADD,
        &sets[0],
        1,
        IN | OUT | Events::RDHUP | ET,
    );
    let mut writes = 0;
    for step in steps {
        match *step {
            Step::Write(at, count) if to_the_brim => drop(twin.write(at, count)),
            Step::Write(at, count) if writes < 40 => {
                writes += 1;
                twin.write(at, count % 128);
            }
            Step::WriteVectored(at, first, second) if to_the_brim => {
                let _ = twin.write_vectored(at, first, second);
            }
            Step::SetSendBuffer(at, bytes) if to_the_brim => drop(twin.set_send_buffer(at, bytes)),
            Step::Write(..) | Step::WriteVectored(..) | Step::SetSendBuffer(..) => {}
            Step::Read(at, count) => drop(twin.read(at, count)),
            Step::ReadVectored(at, a, b) => drop(twin.read_vectored(at, a, b)),
            Step::Shutdown(at, how) => drop(twin.shutdown(at, how)),
            Step::Look(at) => drop(twin.look(at)),
            Step::Poll(at) => drop(twin.events(at)),
            Step::Ctl(op, set, at, events) => {
                let _ = twin.ctl(op, &sets[usize::from(set)], at, events);
            }
            Step::Wait(set) => drop(sets[usize::from(set)].wait()),
            Step::Close(at) => twin.close(at),
        }
    }
    for at in 0..2 {
        twin.look(at);
        twin.events(at);
    }
    for set in &sets {
        set.wait();
    }
    twin.close(0);
    while !matches!(twin.read(1, 5_000), Some(Ok(0)) | None) {}
}

proptest! {
    #![proptest_config(config(600, "socketpair"))]

    #[test]
    fn any_sequence_of_operations_gives_what_the_kernel_gives(
        steps in proptest::collection::vec(steps(), 1..=80),
    ) {
        confirm(|| run(&steps, host_charges_as_documented()));
    }

    #[test]
    fn far_from_full_any_kernel_gives_the_same(
        steps in proptest::collection::vec(steps(), 1..=80),
    ) {
        confirm(|| run(&steps, false));
    }
}

#[test]
fn bytes_go_both_ways_and_messages_have_no_borders() {
    let mut twin = Twin::new();
    twin.write(0, 10);
    twin.write(0, 20);
    twin.write(1, 5);
    assert_eq!(twin.look(1), Some(30));
    assert_eq!(twin.read(1, 15), Some(Ok(15)));
    assert_eq!(twin.read(1, 100), Some(Ok(15)));
    assert_eq!(twin.read(1, 100), Some(Err(Errno::AGAIN)));
    assert_eq!(twin.read(0, 100), Some(Ok(5)));
}

#[test]
fn a_new_socket_is_writable_and_a_message_makes_the_peer_readable() {
    let mut twin = Twin::new();
    assert_eq!(twin.events(0), Some(WRITABLE));
    twin.write(0, 1);
    assert_eq!(twin.events(1), Some(WRITABLE | READABLE));
    twin.read(1, 0);
    assert_eq!(twin.events(1), Some(WRITABLE | READABLE));
    twin.read(1, 1);
    assert_eq!(twin.events(1), Some(WRITABLE));
}

#[test]
fn a_socket_is_writable_again_when_a_quarter_is_used_not_before() {
    let (one, other) = socketpair(SocketFlags::NONBLOCK).unwrap();
    let [kernel_one, kernel_other] = kernel_pair(SocketFlags::NONBLOCK).unwrap();
    let bytes = [0; 100_000];
    while one.try_write(&bytes).is_ok() {}
    while kernel_one.write(&bytes).is_ok() {}
    // Both sides report the same events when full, half full and empty, whatever the size of the
    // host's buffer.
    let shown = |count: usize| {
        let (mut left, mut kernel_left) = (count, count);
        let mut buffer = [0; 4_096];
        while left > 0 {
            let room = left.min(4_096);
            left -= other.try_read(&mut buffer[..room]).unwrap();
        }
        while kernel_left > 0 {
            let room = kernel_left.min(4_096);
            kernel_left -= kernel_other.read(&mut buffer[..room]).unwrap();
        }
        let upoll = events(one.as_file_ref());
        same(("poll", count), upoll, kernel_one.events())
    };
    let total = other.available();
    assert_eq!(shown(0), Events::empty());
    assert_eq!(shown(total / 2), Events::empty());
    assert_eq!(shown(total / 2 - 100), WRITABLE);
}

#[test]
fn the_send_buffer_can_be_set_within_bounds() {
    let mut twin = Twin::new();
    for bytes in [0, 1, 2_304, 2_305, 5_000, 212_992] {
        twin.set_send_buffer(0, bytes);
        twin.look(0);
    }
    twin.set_send_buffer(0, 0);
    assert_eq!(twin.sockets[0].as_ref().unwrap().0.send_buffer(), 4_608);
    // A write takes less than half of the buffer at a time, as long as there is any room.
    twin.write(0, 100_000);
    assert!(twin.look(1).unwrap() < 2 * 4_608);
    let sets = twin.watch(0, OUT | ET);
    assert_eq!(sets.data(), []);
    twin.set_send_buffer(0, 100_000);
    assert_eq!(sets.data(), [0]);
    let (one, _other) = socketpair(SocketFlags::empty()).unwrap();
    one.set_send_buffer(usize::MAX);
    assert_eq!(one.send_buffer(), 8 << 20);
}

#[test]
fn shutting_down_sending_gives_the_peer_the_end_and_this_side_epipe() {
    let mut twin = Twin::new();
    let sets = twin.watch(1, Events::RDHUP | ET);
    twin.write(0, 3);
    assert_eq!(sets.data(), []);
    twin.shutdown(0, Shutdown::Write);
    assert_eq!(sets.wait(), [(Events::RDHUP, 1)]);
    assert_eq!(twin.events(0), Some(WRITABLE));
    assert_eq!(twin.events(1), Some(WRITABLE | READABLE | Events::RDHUP));
    assert_eq!(twin.write(0, 1), Some(Err(Errno::PIPE)));
    assert_eq!(twin.write(0, 0), Some(Err(Errno::PIPE)));
    assert_eq!(twin.write_vectored(0, 0, 0), Some(Ok(0)));
    assert_eq!(twin.read(1, 10), Some(Ok(3)));
    assert_eq!(twin.read(1, 10), Some(Ok(0)));
    // The other direction still works.
    assert_eq!(twin.write(1, 4), Some(Ok(4)));
    assert_eq!(twin.read(0, 10), Some(Ok(4)));
}

#[test]
fn shutting_down_receiving_leaves_what_is_there_and_gives_the_peer_epipe() {
    let mut twin = Twin::new();
    twin.write(0, 3);
    twin.shutdown(1, Shutdown::Read);
    assert_eq!(twin.events(1), Some(WRITABLE | READABLE | Events::RDHUP));
    assert_eq!(twin.write(0, 1), Some(Err(Errno::PIPE)));
    assert_eq!(twin.read(1, 2), Some(Ok(2)));
    assert_eq!(twin.read(1, 2), Some(Ok(1)));
    assert_eq!(twin.read(1, 2), Some(Ok(0)));
}

#[test]
fn shutting_down_both_directions_hangs_up_on_both_sides() {
    let twin = Twin::new();
    twin.shutdown(0, Shutdown::Read);
    twin.shutdown(1, Shutdown::Read);
    let all = WRITABLE | READABLE | Events::RDHUP | Events::HUP;
    assert_eq!(twin.events(0), Some(all));
    assert_eq!(twin.events(1), Some(all));
    let twin = Twin::new();
    let sets = twin.watch(0, Events::empty());
    twin.shutdown(1, Shutdown::Both);
    assert_eq!(sets.wait(), [(Events::HUP, 0)]);
}

#[test]
fn a_close_hangs_up_and_what_was_sent_can_still_be_read() {
    let mut twin = Twin::new();
    twin.write(0, 5);
    twin.close(0);
    let all = WRITABLE | READABLE | Events::RDHUP | Events::HUP;
    assert_eq!(twin.events(1), Some(all));
    assert_eq!(twin.write(1, 1), Some(Err(Errno::PIPE)));
    assert_eq!(twin.read(1, 10), Some(Ok(5)));
    assert_eq!(twin.read(1, 10), Some(Ok(0)));
    twin.shutdown(1, Shutdown::Both);
    assert_eq!(twin.events(1), Some(all));
}

#[test]
fn a_close_with_unread_bytes_resets_the_peer_once() {
    let mut twin = Twin::new();
    twin.write(0, 5);
    twin.write(1, 5);
    twin.close(0);
    let hung_up = WRITABLE | READABLE | Events::RDHUP | Events::HUP;
    assert_eq!(twin.events(1), Some(hung_up | Events::ERR));
    assert_eq!(twin.write(1, 1), Some(Err(Errno::PIPE)));
    assert_eq!(twin.read(1, 10), Some(Ok(5)));
    assert_eq!(twin.read(1, 10), Some(Err(Errno::CONNRESET)));
    assert_eq!(twin.events(1), Some(hung_up));
    assert_eq!(twin.read(1, 10), Some(Ok(0)));
}

#[test]
fn an_edge_triggered_socket_reports_every_message_and_every_one_finished() {
    let mut twin = Twin::new();
    let reading = twin.watch(1, IN | ET);
    let writing = twin.watch(0, OUT | ET);
    assert_eq!(writing.data(), [0]);
    for _ in 0..3 {
        twin.write(0, 10);
        assert_eq!(reading.data(), [1]);
        assert_eq!(reading.data(), []);
    }
    twin.read(1, 4);
    assert_eq!(writing.data(), []);
    twin.read(1, 10);
    assert_eq!(writing.data(), [0]);
    assert_eq!(reading.data(), []);
}

#[test]
fn flags_that_linux_does_not_know_are_invalid() {
    let unknown = SocketFlags::from_bits_retain(1 << 30);
    let kernel = kernel_pair(unknown).map(drop);
    let made = same("socketpair", socketpair(unknown).map(drop), kernel);
    assert_eq!(made, Err(Errno::INVAL));
    let (one, _other) = socketpair(SocketFlags::NONBLOCK | SocketFlags::CLOEXEC).unwrap();
    assert_eq!(one.flags(), SocketFlags::NONBLOCK);
    one.set_flags(SocketFlags::empty());
    assert_eq!(one.flags(), SocketFlags::empty());
}

/// The operations that threads use on a socket of either world.
trait Socket: Send + Sync {
    fn read(&self, buffer: &mut [u8]) -> Result<usize, Errno>;
    fn write(&self, bytes: &[u8]) -> Result<usize, Errno>;
    fn shutdown(&self, how: Shutdown);
}

impl Socket for Fd {
    fn read(&self, buffer: &mut [u8]) -> Result<usize, Errno> {
        Fd::read(self, buffer)
    }

    fn write(&self, bytes: &[u8]) -> Result<usize, Errno> {
        Fd::write(self, bytes)
    }

    fn shutdown(&self, how: Shutdown) {
        kernel_shutdown(self, how);
    }
}

impl Socket for StreamSocket {
    fn read(&self, buffer: &mut [u8]) -> Result<usize, Errno> {
        StreamSocket::read(self, buffer)
    }

    fn write(&self, bytes: &[u8]) -> Result<usize, Errno> {
        StreamSocket::write(self, bytes)
    }

    fn shutdown(&self, how: Shutdown) {
        StreamSocket::shutdown(self, how);
    }
}

/// Returns blocking pairs: one of the kernel and one of upoll.
fn both_worlds() -> [[Arc<dyn Socket>; 2]; 2] {
    let [kernel_one, kernel_other] = kernel_pair(SocketFlags::empty()).unwrap();
    let (one, other) = socketpair(SocketFlags::empty()).unwrap();
    [
        [Arc::new(kernel_one), Arc::new(kernel_other)],
        [Arc::new(one), Arc::new(other)],
    ]
}

#[test]
fn a_blocked_read_ends_with_a_write_a_shutdown_or_a_close() {
    for [one, other] in both_worlds() {
        let reader = other.clone();
        let (thread, _) = asleep(move || reader.read(&mut [0; 10]));
        assert_eq!(one.write(&[0; 4]), Ok(4));
        assert_eq!(thread.join().unwrap(), Ok(4));

        let reader = other.clone();
        let (thread, _) = asleep(move || reader.read(&mut [0; 10]));
        other.shutdown(Shutdown::Read);
        assert_eq!(thread.join().unwrap(), Ok(0));
    }
    for [one, other] in both_worlds() {
        let (thread, _) = asleep(move || other.read(&mut [0; 10]));
        drop(one);
        assert_eq!(thread.join().unwrap(), Ok(0));
    }
}

#[test]
fn a_large_write_blocks_until_all_of_it_is_sent() {
    for [one, other] in both_worlds() {
        let (thread, _) = asleep(move || one.write(&[7; 1_000_000]));
        let mut left = 1_000_000;
        while left > 0 {
            left -= other.read(&mut [0; 10_000]).unwrap();
        }
        assert_eq!(thread.join().unwrap(), Ok(1_000_000));
    }
}

/// Fills the send buffer with messages of one byte.
fn fill(socket: &Arc<dyn Socket>) {
    let writer = socket.clone();
    let (thread, tid) = asleep(move || writer.write(&[0; 1_000_000]));
    signal(tid, false);
    assert!((1..1_000_000).contains(&thread.join().unwrap().unwrap()));
}

#[test]
fn a_blocked_write_meets_a_reset_before_the_broken_pipe() {
    for [one, other] in both_worlds() {
        fill(&one);
        let writer = one.clone();
        let (thread, _) = asleep(move || writer.write(&[0]));
        // The socket closes with unread bytes.
        drop(other);
        assert_eq!(thread.join().unwrap(), Err(Errno::CONNRESET));
        assert_eq!(one.write(&[0]), Err(Errno::PIPE));
        // The reset is reported once.
        assert_eq!(one.read(&mut [0]), Ok(0));
    }
}

#[test]
fn a_blocked_write_ends_with_a_broken_pipe_when_sending_is_shut_down() {
    for [one, other] in both_worlds() {
        fill(&one);
        let writer = one.clone();
        let (thread, _) = asleep(move || writer.write(&[0]));
        other.shutdown(Shutdown::Read);
        assert_eq!(thread.join().unwrap(), Err(Errno::PIPE));
    }
}

#[test]
fn a_write_that_was_cut_short_says_how_much_went() {
    for [one, other] in both_worlds() {
        let writer = one.clone();
        let (thread, _) = asleep(move || writer.write(&[0; 1_000_000]));
        other.shutdown(Shutdown::Read);
        assert!((1..1_000_000).contains(&thread.join().unwrap().unwrap()));
        assert_eq!(one.write(&[0]), Err(Errno::PIPE));
    }
}

#[test]
fn a_signal_ends_a_blocked_call_unless_its_handler_restarts_it() {
    for [one, other] in both_worlds() {
        let reader = other.clone();
        let (thread, tid) = asleep(move || reader.read(&mut [0]));
        signal(tid, true);
        until_asleep(tid);
        signal(tid, false);
        assert_eq!(thread.join().unwrap(), Err(Errno::INTR));

        fill(&one);
        let writer = one.clone();
        let (thread, tid) = asleep(move || writer.write(&[0]));
        signal(tid, true);
        until_asleep(tid);
        signal(tid, false);
        assert_eq!(thread.join().unwrap(), Err(Errno::INTR));
    }
    // After a partial write any handler ends the call, which returns the bytes written.
    for [one, _other] in both_worlds() {
        let (thread, tid) = asleep(move || one.write(&[0; 1_000_000]));
        signal(tid, true);
        assert!((1..1_000_000).contains(&thread.join().unwrap().unwrap()));
    }
}

#[test]
fn two_threads_that_talk_both_ways_lose_no_byte() {
    const SIZE: usize = 3_000_000;
    let (one, other) = socketpair(SocketFlags::empty()).unwrap();
    one.set_send_buffer(5_000);
    let threads: Vec<_> = [(one, 1_777), (other, 40_001)]
        .into_iter()
        .flat_map(|(socket, piece)| {
            let writer = socket.clone();
            let writing = thread::spawn(move || {
                let bytes = Pattern::new().bytes(SIZE);
                for chunk in bytes.chunks(piece) {
                    assert_eq!(writer.write(chunk), Ok(chunk.len()));
                }
                writer.shutdown(Shutdown::Write);
            });
            let reading = thread::spawn(move || {
                let mut all = Vec::new();
                let mut buffer = [0; 2_345];
                loop {
                    match socket.read(&mut buffer).unwrap() {
                        0 => break,
                        count => all.extend_from_slice(&buffer[..count]),
                    }
                }
                assert!(all == Pattern::new().bytes(SIZE), "lost or disordered");
            });
            [writing, reading]
        })
        .collect();
    for thread in threads {
        thread.join().unwrap();
    }
}
