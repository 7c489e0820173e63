//! Pipes of the host kernel and of upoll, with every result compared.
#![cfg(feature = "std")]
#![cfg(not(upoll_loom))]

mod random;
mod twin;

use proptest::prelude::*;
use random::{config, confirm};
use upoll::{
    Errno, Events, FileRef, PIPE_BUF, PIPE_MAX_SIZE, PipeFlags, PipeReader, PipeWriter, pipe, pipe2,
};

use twin::changes::{self, ops};
use twin::{Fd, Pattern, Sets, events, kernel_pipe, same};

const IN: Events = Events::IN;
const OUT: Events = Events::OUT;
const ET: Events = Events::ET;

/// A pipe in both worlds, with each of its ends that is still open.
struct Twin {
    reader: Option<(PipeReader, Fd)>,
    writer: Option<(PipeWriter, Fd)>,
    pattern: Pattern,
    /// Alternates between the calls that may block, on a nonblocking end, and those that never do.
    turn: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    Reading,
    Writing,
}
use End::{Reading, Writing};

impl Twin {
    fn new() -> Self {
        Self::with_flags(PipeFlags::empty())
    }

    fn with_flags(flags: PipeFlags) -> Self {
        let flags = flags | PipeFlags::NONBLOCK;
        let (reader, writer) = pipe2(flags).unwrap();
        let (kernel_reader, kernel_writer) = kernel_pipe(flags).unwrap();
        Twin {
            reader: Some((reader, kernel_reader)),
            writer: Some((writer, kernel_writer)),
            pattern: Pattern::new(),
            turn: false,
        }
    }

    fn turn(&mut self) -> bool {
        self.turn = !self.turn;
        self.turn
    }

    #[track_caller]
    fn write(&mut self, count: usize) -> Option<Result<usize, Errno>> {
        let turn = self.turn();
        let (upoll, kernel) = self.writer.as_ref()?;
        let bytes = self.pattern.bytes(count);
        let written = if turn {
            upoll.write(&bytes)
        } else {
            upoll.try_write(&bytes)
        };
        Some(same(("write", count), written, kernel.write(&bytes)))
    }

    #[track_caller]
    fn write_vectored(&mut self, first: usize, second: usize) -> Option<Result<usize, Errno>> {
        let turn = self.turn();
        let (upoll, kernel) = self.writer.as_ref()?;
        let bytes = self.pattern.bytes(first + second);
        let parts = [&bytes[..first], &bytes[first..]];
        let written = if turn {
            upoll.write_vectored(&parts)
        } else {
            upoll.try_write_vectored(&parts)
        };
        Some(same(
            ("writev", first, second),
            written,
            kernel.writev(parts),
        ))
    }

    #[track_caller]
    fn read(&mut self, count: usize) -> Option<Result<usize, Errno>> {
        let turn = self.turn();
        let (upoll, kernel) = self.reader.as_ref()?;
        let (mut ours, mut theirs) = (vec![0; count], vec![0; count]);
        let read = if turn {
            upoll.read(&mut ours)
        } else {
            upoll.try_read(&mut ours)
        };
        let read = same(("read", count), read, kernel.read(&mut theirs));
        assert!(ours == theirs, "other bytes than the kernel's");
        Some(read)
    }

    #[track_caller]
    fn read_vectored(&mut self, first: usize, second: usize) -> Option<Result<usize, Errno>> {
        let turn = self.turn();
        let (upoll, kernel) = self.reader.as_ref()?;
        let mut ours = vec![0; first + second];
        let mut theirs = ours.clone();
        let (head, tail) = ours.split_at_mut(first);
        let read = if turn {
            upoll.read_vectored(&mut [head, tail])
        } else {
            upoll.try_read_vectored(&mut [head, tail])
        };
        let (head, tail) = theirs.split_at_mut(first);
        let read = same(("readv", first, second), read, kernel.readv([head, tail]));
        assert!(ours == theirs, "other bytes than the kernel's");
        Some(read)
    }

    fn end(&self, end: End) -> Option<(FileRef<'_>, &Fd)> {
        match end {
            Reading => self
                .reader
                .as_ref()
                .map(|(upoll, kernel)| (upoll.as_file_ref(), kernel)),
            Writing => self
                .writer
                .as_ref()
                .map(|(upoll, kernel)| (upoll.as_file_ref(), kernel)),
        }
    }

    #[track_caller]
    fn events(&self, end: End) -> Option<Events> {
        let (upoll, kernel) = self.end(end)?;
        Some(same(("poll", end), events(upoll), kernel.events()))
    }

    #[track_caller]
    fn set_capacity(&self, end: End, bytes: usize) -> Option<Result<usize, Errno>> {
        let (_, kernel) = self.end(end)?;
        let upoll = match end {
            Reading => self.reader.as_ref()?.0.set_capacity(bytes),
            Writing => self.writer.as_ref()?.0.set_capacity(bytes),
        };
        let bytes = u32::try_from(bytes).unwrap().cast_signed();
        let kernel = kernel.fcntl(libc::F_SETPIPE_SZ, bytes);
        Some(same(("F_SETPIPE_SZ", bytes), upoll, kernel))
    }

    /// Compares capacity, unread bytes and flags.
    #[track_caller]
    fn look(&self, end: End) -> Option<(usize, usize)> {
        let (_, kernel) = self.end(end)?;
        let (capacity, available, flags) = match end {
            Reading => {
                let (upoll, _) = self.reader.as_ref()?;
                (upoll.capacity(), upoll.available(), upoll.flags())
            }
            Writing => {
                let (upoll, _) = self.writer.as_ref()?;
                (upoll.capacity(), upoll.available(), upoll.flags())
            }
        };
        let theirs = kernel.fcntl(libc::F_GETPIPE_SZ, 0).unwrap();
        same("F_GETPIPE_SZ", capacity, theirs);
        same("FIONREAD", available, kernel.available());
        let theirs = u32::try_from(kernel.fcntl(libc::F_GETFL, 0).unwrap()).unwrap();
        let status = PipeFlags::NONBLOCK | PipeFlags::DIRECT;
        let theirs = PipeFlags::from_bits_retain(theirs) & status;
        same("F_GETFL", flags, theirs);
        Some((capacity, available))
    }

    fn set_flags(&self, end: End, flags: PipeFlags) -> Option<()> {
        let (_, kernel) = self.end(end)?;
        let flags = flags | PipeFlags::NONBLOCK;
        match end {
            Reading => self.reader.as_ref()?.0.set_flags(flags),
            Writing => self.writer.as_ref()?.0.set_flags(flags),
        }
        kernel
            .fcntl(libc::F_SETFL, flags.bits().cast_signed())
            .unwrap();
        Some(())
    }

    fn close(&mut self, end: End) {
        match end {
            Reading => self.reader = None,
            Writing => self.writer = None,
        }
    }

    fn ctl(&self, op: i32, sets: &Sets, end: End, events: Events) -> Option<Result<(), Errno>> {
        let (upoll, kernel) = self.end(end)?;
        Some(sets.ctl(op, upoll, kernel, events, end as u64))
    }

    fn watch(&self, end: End, events: Events) -> Sets {
        let sets = Sets::new();
        self.ctl(libc::EPOLL_CTL_ADD, &sets, end, events)
            .unwrap()
            .unwrap();
        sets
    }
}

#[derive(Clone, Debug)]
enum Step {
    Write(usize),
    WriteVectored(usize, usize),
    Read(usize),
    ReadVectored(usize, usize),
    SetFlags(End, PipeFlags),
    SetCapacity(End, usize),
    Look(End),
    Poll(End),
    Ctl(i32, bool, End, Events),
    Wait(bool),
    Close(End),
}

fn sizes() -> impl Strategy<Value = usize> {
    prop_oneof![
        2 => Just(0_usize),
        8 => 1..300_usize,
        4 => 2_000..2_200_usize,
        6 => prop::sample::select(vec![4_095_usize, 4_096, 4_097, 8_191, 8_192, 8_193]),
        4 => 1..20_000_usize,
        2 => prop::sample::select(vec![61_440_usize, 65_535, 65_536, 65_537, 131_072]),
    ]
}

fn interests() -> impl Strategy<Value = Events> {
    let wanted = [
        IN,
        OUT,
        IN | OUT,
        Events::empty(),
        Events::RDNORM,
        Events::WRNORM | Events::RDHUP,
    ];
    changes::interests(&wanted, &[])
}

fn steps() -> impl Strategy<Value = Step> {
    let end = || prop_oneof![Just(Reading), Just(Writing)];
    let capacity = prop_oneof![
        4 => 0..20_000_usize,
        1 => Just(65_536_usize),
        1 => Just(PIPE_MAX_SIZE),
        1 => Just((1_usize << 31) + 1),
        1 => Just(u32::MAX as usize),
    ];
    let flags = prop::sample::select(vec![PipeFlags::empty(), PipeFlags::DIRECT]);
    prop_oneof![
        20 => sizes().prop_map(Step::Write),
        4 => (sizes(), sizes()).prop_map(|(a, b)| Step::WriteVectored(a, b)),
        20 => sizes().prop_map(Step::Read),
        4 => (sizes(), sizes()).prop_map(|(a, b)| Step::ReadVectored(a, b)),
        2 => (end(), flags).prop_map(|(end, flags)| Step::SetFlags(end, flags)),
        4 => (end(), capacity).prop_map(|(end, bytes)| Step::SetCapacity(end, bytes)),
        6 => end().prop_map(Step::Look),
        8 => end().prop_map(Step::Poll),
        8 => (ops(), any::<bool>(), end(), interests())
            .prop_map(|(op, set, end, events)| Step::Ctl(op, set, end, events)),
        16 => any::<bool>().prop_map(Step::Wait),
        1 => end().prop_map(Step::Close),
    ]
}

fn run(flags: PipeFlags, steps: &[Step]) {
    let mut twin = Twin::with_flags(flags);
    // The first set exists from the beginning and is edge-triggered. The steps make and use the
    // other one.
    let sets = [twin.watch(Reading, IN | ET), Sets::new()];
    twin.ctl(libc::EPOLL_CTL_ADD, &sets[0], Writing, OUT | ET);
    for step in steps {
        match *step {
            Step::Write(count) => drop(twin.write(count)),
            Step::WriteVectored(first, second) => drop(twin.write_vectored(first, second)),
            Step::Read(count) => drop(twin.read(count)),
            Step::ReadVectored(first, second) => drop(twin.read_vectored(first, second)),
            Step::SetFlags(end, flags) => drop(twin.set_flags(end, flags)),
            Step::SetCapacity(end, bytes) => drop(twin.set_capacity(end, bytes)),
            Step::Look(end) => drop(twin.look(end)),
            Step::Poll(end) => drop(twin.events(end)),
            Step::Ctl(op, set, end, events) => {
                let _ = twin.ctl(op, &sets[usize::from(set)], end, events);
            }
            Step::Wait(set) => drop(sets[usize::from(set)].wait()),
            Step::Close(end) => twin.close(end),
        }
    }
    for end in [Reading, Writing] {
        twin.look(end);
        twin.events(end);
    }
    for set in &sets {
        set.wait();
    }
    twin.close(Writing);
    while matches!(twin.read(5_000), Some(Ok(1..))) {}
}

proptest! {
    #![proptest_config(config(600, "pipe"))]

    #[test]
    fn any_sequence_of_operations_gives_what_the_kernel_gives(
        packets in any::<bool>(),
        steps in proptest::collection::vec(steps(), 1..=80),
    ) {
        let flags = if packets { PipeFlags::DIRECT } else { PipeFlags::empty() };
        confirm(|| run(flags, &steps));
    }
}

#[test]
fn a_pipe_holds_sixteen_pages_and_then_gives_eagain() {
    let mut twin = Twin::new();
    assert_eq!(twin.look(Writing), Some((65_536, 0)));
    assert_eq!(twin.write(100_000), Some(Ok(65_536)));
    assert_eq!(twin.write(1), Some(Err(Errno::AGAIN)));
    assert_eq!(twin.events(Writing), Some(Events::empty()));
    // A page must come free before there is room.
    assert_eq!(twin.read(4_095), Some(Ok(4_095)));
    assert_eq!(twin.write(1), Some(Err(Errno::AGAIN)));
    assert_eq!(twin.read(1), Some(Ok(1)));
    assert_eq!(twin.events(Writing), Some(OUT | Events::WRNORM));
    assert_eq!(twin.write(5_000), Some(Ok(4_096)));
}

#[test]
fn a_write_merges_into_the_last_page_if_its_odd_part_fits_there() {
    let mut twin = Twin::new();
    twin.set_capacity(Writing, 2 * PIPE_BUF);
    for _ in 0..2 {
        assert_eq!(twin.write(4_000), Some(Ok(4_000)));
    }
    // Both pages are in use: poll reports no room, but the odd part of a write still fits.
    assert_eq!(twin.events(Writing), Some(Events::empty()));
    assert_eq!(twin.write(97), Some(Err(Errno::AGAIN)));
    assert_eq!(twin.write(90), Some(Ok(90)));
    assert_eq!(twin.write(4_096 + 6), Some(Ok(6)));
    assert_eq!(twin.write(1), Some(Err(Errno::AGAIN)));
    assert_eq!(twin.read(10_000), Some(Ok(8_096)));
}

#[test]
fn a_write_of_pipe_buf_is_done_whole_or_not() {
    let mut twin = Twin::new();
    twin.write(65_536 - 2_000);
    twin.read(1);
    assert_eq!(twin.write(PIPE_BUF), Some(Err(Errno::AGAIN)));
    assert_eq!(twin.write(PIPE_BUF + 2_000), Some(Ok(2_000)));
}

#[test]
fn packets_are_read_one_by_one_and_cut_to_the_buffer() {
    let mut twin = Twin::with_flags(PipeFlags::DIRECT);
    twin.write(10);
    twin.write(20);
    twin.write(5_000);
    assert_eq!(twin.look(Reading), Some((65_536, 5_030)));
    assert_eq!(twin.read(100), Some(Ok(10)));
    assert_eq!(twin.read(5), Some(Ok(5)));
    assert_eq!(twin.look(Reading), Some((65_536, 5_000)));
    assert_eq!(twin.read(10_000), Some(Ok(4_096)));
    assert_eq!(twin.read(10_000), Some(Ok(904)));
    // Sixteen packets fill the pipe, however small they are.
    for _ in 0..16 {
        assert_eq!(twin.write(1), Some(Ok(1)));
    }
    assert_eq!(twin.write(1), Some(Err(Errno::AGAIN)));
}

#[test]
fn a_read_takes_what_stands_before_a_packet_together_with_it() {
    let mut twin = Twin::new();
    twin.write(10);
    twin.set_flags(Writing, PipeFlags::DIRECT);
    // The write joins the last page even in packet mode, because that page holds no packet.
    twin.write(10);
    twin.write(4_090);
    twin.set_flags(Writing, PipeFlags::empty());
    twin.write(10);
    assert_eq!(twin.read(10_000), Some(Ok(20 + 4_090)));
    assert_eq!(twin.read(10_000), Some(Ok(10)));
}

#[test]
fn without_readers_a_write_gives_epipe_and_the_end_shows_an_error() {
    let mut twin = Twin::new();
    twin.write(10);
    let sets = twin.watch(Writing, Events::empty());
    assert_eq!(sets.data(), []);
    twin.close(Reading);
    assert_eq!(sets.wait(), [(Events::ERR, 1)]);
    assert_eq!(
        twin.events(Writing),
        Some(OUT | Events::WRNORM | Events::ERR)
    );
    assert_eq!(twin.write(1), Some(Err(Errno::PIPE)));
    assert_eq!(twin.write(0), Some(Ok(0)));
}

#[test]
fn without_writers_a_read_gives_the_rest_and_then_the_end() {
    let mut twin = Twin::new();
    let sets = twin.watch(Reading, Events::empty());
    twin.write(10);
    assert_eq!(sets.data(), []);
    twin.close(Writing);
    assert_eq!(sets.wait(), [(Events::HUP, 0)]);
    assert_eq!(
        twin.events(Reading),
        Some(IN | Events::RDNORM | Events::HUP)
    );
    assert_eq!(twin.read(4), Some(Ok(4)));
    assert_eq!(twin.read(100), Some(Ok(6)));
    assert_eq!(twin.read(100), Some(Ok(0)));
    assert_eq!(twin.events(Reading), Some(Events::HUP));
}

#[test]
fn an_end_is_open_until_its_last_reference_goes() {
    let (reader, writer) = pipe().unwrap();
    let (kernel_reader, kernel_writer) = kernel_pipe(PipeFlags::NONBLOCK).unwrap();
    let other = writer.clone();
    let kernel_other =
        Fd::new(i32::try_from(kernel_writer.fcntl(libc::F_DUPFD, 0).unwrap()).unwrap());
    drop((writer, kernel_writer));
    let mut buffer = [0];
    let read = reader.try_read(&mut buffer);
    let kernel = kernel_reader.read(&mut buffer);
    assert_eq!(same("dup", read, kernel), Err(Errno::AGAIN));
    drop((other, kernel_other));
    let read = reader.try_read(&mut buffer);
    let kernel = kernel_reader.read(&mut buffer);
    assert_eq!(same("closed", read, kernel), Ok(0));
}

#[test]
fn capacity_is_rounded_up_and_never_below_what_is_in_use() {
    let mut twin = Twin::new();
    for (asked, given) in [
        (0, 4_096),
        (1, 4_096),
        (4_097, 8_192),
        (8_193, 16_384),
        (PIPE_MAX_SIZE, PIPE_MAX_SIZE),
        (65_536, 65_536),
    ] {
        assert_eq!(twin.set_capacity(Reading, asked), Some(Ok(given)));
    }
    twin.write(4_096 * 5);
    twin.read(4_000);
    assert_eq!(twin.set_capacity(Writing, 16_384), Some(Err(Errno::BUSY)));
    twin.read(96);
    assert_eq!(twin.set_capacity(Writing, 16_384), Some(Ok(16_384)));
    assert_eq!(twin.events(Writing), Some(Events::empty()));
    let invalid = (1 << 31) + 1;
    assert_eq!(twin.set_capacity(Writing, invalid), Some(Err(Errno::INVAL)));
}

#[test]
fn more_than_the_largest_size_is_not_permitted() {
    // The kernel's result depends on the capabilities of the test. The rule of pipe(7) is that of
    // an unprivileged process.
    let (reader, _writer) = pipe().unwrap();
    let over = reader.set_capacity(PIPE_MAX_SIZE + 1);
    assert_eq!(over, Err(Errno::PERM));
    assert_eq!(reader.capacity(), 65_536);
}

#[test]
fn changing_the_capacity_is_news_for_writers() {
    let mut twin = Twin::new();
    twin.write(65_536);
    let sets = twin.watch(Writing, OUT | ET);
    assert_eq!(sets.data(), []);
    twin.set_capacity(Reading, 131_072);
    assert_eq!(sets.data(), [1]);
    twin.set_capacity(Reading, 131_072);
    assert_eq!(sets.data(), [1]);
}

#[test]
fn an_edge_triggered_reader_learns_of_every_write_even_of_one_that_fails() {
    let mut twin = Twin::new();
    let sets = twin.watch(Reading, IN | ET);
    for _ in 0..3 {
        twin.write(1);
        assert_eq!(sets.data(), [0]);
        assert_eq!(sets.data(), []);
    }
    twin.write(0);
    assert_eq!(sets.data(), []);
    twin.write(100_000);
    assert_eq!(sets.data(), [0]);
    assert_eq!(twin.write(4_096), Some(Err(Errno::AGAIN)));
    assert_eq!(sets.data(), [0]);
    // A partial read is no new edge.
    twin.read(10);
    assert_eq!(sets.data(), []);
}

#[test]
fn an_edge_triggered_writer_learns_only_of_the_read_that_makes_room() {
    let mut twin = Twin::new();
    let sets = twin.watch(Writing, OUT | ET);
    assert_eq!(sets.data(), [1]);
    twin.write(10_000);
    twin.read(10_000);
    assert_eq!(sets.data(), []);
    twin.write(65_536);
    twin.read(100);
    assert_eq!(sets.data(), []);
    twin.read(4_096);
    assert_eq!(sets.data(), [1]);
    twin.read(4_096);
    assert_eq!(sets.data(), []);
}

#[test]
fn flags_that_linux_does_not_know_are_invalid() {
    let unknown = PipeFlags::from_bits_retain(1);
    let kernel = kernel_pipe(unknown).map(drop);
    let made = same("pipe2", pipe2(unknown).map(drop), kernel);
    assert_eq!(made, Err(Errno::INVAL));
    let twin = Twin::with_flags(PipeFlags::DIRECT | PipeFlags::CLOEXEC);
    twin.look(Reading);
    twin.look(Writing);
}
