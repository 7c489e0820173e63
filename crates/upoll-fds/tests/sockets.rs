//! Socket pairs by fd have the same results as the kernel's: `send`, `recv` and their longer forms,
//! with flags, bad pointers and many buffers.

use std::time::Duration;

use proptest::prelude::*;
use upoll::Errno;

/// A pair, the kernel's or ours.
struct Pair {
    is_ours: bool,
    fds: [i32; 2],
}

type Outcome = Result<usize, i32>;

fn theirs(result: isize) -> Outcome {
    usize::try_from(result).map_err(|_| std::io::Error::last_os_error().raw_os_error().unwrap())
}

fn ours(result: Result<usize, Errno>) -> Outcome {
    result.map_err(Errno::raw)
}

impl Pair {
    fn new(is_ours: bool, flags: i32) -> Self {
        let mut fds = [-1; 2];
        let kind = libc::SOCK_STREAM | flags;
        if is_ours {
            // SAFETY: there is room for two fds.
            unsafe { upoll_fds::socketpair(libc::AF_UNIX, kind, 0, &raw mut fds) }.unwrap();
        } else {
            // SAFETY: as above.
            let made = unsafe { libc::socketpair(libc::AF_UNIX, kind, 0, fds.as_mut_ptr()) };
            assert_eq!(made, 0);
        }
        Pair { is_ours, fds }
    }

    fn both(flags: i32) -> [Pair; 2] {
        [false, true].map(|is_ours| Pair::new(is_ours, flags))
    }

    fn sendto(&self, at: usize, bytes: (*const u8, usize), flags: i32, to: Address) -> Outcome {
        let (fd, (base, len), (to, size)) = (self.fds[at], bytes, to);
        // SAFETY: what the pointers lead to is live, or not there at all.
        unsafe {
            match self.is_ours {
                true => ours(upoll_fds::sendto(fd, base, len, flags, to, size)),
                false => theirs(libc::sendto(fd, base.cast(), len, flags, to, size)),
            }
        }
    }

    fn send(&self, at: usize, bytes: &[u8], flags: i32) -> Outcome {
        self.sendto(at, (bytes.as_ptr(), bytes.len()), flags, NO_ADDRESS)
    }

    /// With the address and its length that are there afterwards.
    fn recvfrom(
        &self,
        at: usize,
        (base, len): (*mut u8, usize),
        flags: i32,
        (from, size): (*mut libc::sockaddr, *mut u32),
    ) -> Outcome {
        let fd = self.fds[at];
        // SAFETY: what the pointers lead to is live, or not there at all.
        unsafe {
            match self.is_ours {
                true => ours(upoll_fds::recvfrom(fd, base, len, flags, from, size)),
                false => theirs(libc::recvfrom(fd, base.cast(), len, flags, from, size)),
            }
        }
    }

    fn recv(&self, at: usize, len: usize, flags: i32) -> (Outcome, Vec<u8>) {
        let mut buffer = vec![0; len];
        let nobody = (std::ptr::null_mut(), std::ptr::null_mut());
        let outcome = self.recvfrom(at, (buffer.as_mut_ptr(), len), flags, nobody);
        (outcome, buffer)
    }

    fn sendmsg(&self, at: usize, message: *const libc::msghdr, flags: i32) -> Outcome {
        // SAFETY: what the pointers lead to is live, or not there at all.
        unsafe {
            match self.is_ours {
                true => ours(upoll_fds::sendmsg(self.fds[at], message, flags)),
                false => theirs(libc::sendmsg(self.fds[at], message, flags)),
            }
        }
    }

    fn recvmsg(&self, at: usize, message: *mut libc::msghdr, flags: i32) -> Outcome {
        // SAFETY: as above.
        unsafe {
            match self.is_ours {
                true => ours(upoll_fds::recvmsg(self.fds[at], message, flags)),
                false => theirs(libc::recvmsg(self.fds[at], message, flags)),
            }
        }
    }

    fn vectored(&self, at: usize, list: &[libc::iovec], count: i32, writes: bool) -> Outcome {
        let (fd, list) = (self.fds[at], list.as_ptr());
        // SAFETY: as above.
        unsafe {
            match (self.is_ours, writes) {
                (true, true) => ours(upoll_fds::writev(fd, list, count)),
                (true, false) => ours(upoll_fds::readv(fd, list, count)),
                (false, true) => theirs(libc::writev(fd, list, count)),
                (false, false) => theirs(libc::readv(fd, list, count)),
            }
        }
    }

    fn shutdown(&self, at: usize, how: i32) -> Outcome {
        match self.is_ours {
            true => ours(upoll_fds::shutdown(self.fds[at], how).map(|()| 0)),
            // SAFETY: no pointers are involved.
            false => theirs(unsafe { libc::shutdown(self.fds[at], how) } as isize),
        }
    }

    fn available(&self, at: usize) -> i32 {
        let (fd, mut count) = (self.fds[at], -1_i32);
        let to = &raw mut count;
        // SAFETY: the count is live.
        let asked = unsafe {
            match self.is_ours {
                true => upoll_fds::ioctl(fd, libc::FIONREAD as u32, to.expose_provenance()).is_ok(),
                false => libc::ioctl(fd, libc::FIONREAD, to) == 0,
            }
        };
        assert!(asked);
        count
    }

    fn close(&mut self, at: usize) {
        let fd = std::mem::replace(&mut self.fds[at], -1);
        match self.is_ours {
            true => upoll_fds::close(fd).unwrap(),
            // SAFETY: the fd is this one's.
            false => assert_eq!(unsafe { libc::close(fd) }, 0),
        }
    }
}

impl Drop for Pair {
    fn drop(&mut self) {
        for at in 0..2 {
            if self.fds[at] >= 0 {
                self.close(at);
            }
        }
    }
}

type Address = (*const libc::sockaddr, libc::socklen_t);
const NO_ADDRESS: Address = (std::ptr::null(), 0);

#[derive(Clone, Debug)]
enum Call {
    Send(usize, usize, i32),
    Receive(usize, usize, i32),
    Message(usize, Vec<usize>, i32, bool),
    Vectored(usize, Vec<usize>, bool),
    Shutdown(usize, i32),
    Close(usize),
}

fn call() -> impl Strategy<Value = Call> {
    let len = || {
        prop_oneof![
            Just(0_usize),
            1..10_usize,
            1..5000_usize,
            Just(40_000),
            Just(300_000)
        ]
    };
    let send = prop_oneof![
        Just(0),
        Just(libc::MSG_NOSIGNAL),
        Just(libc::MSG_DONTWAIT | libc::MSG_MORE),
        Just(libc::MSG_EOR),
    ];
    let receive = || {
        prop_oneof![
            Just(0),
            Just(libc::MSG_PEEK),
            Just(libc::MSG_WAITALL),
            Just(libc::MSG_DONTWAIT),
            Just(libc::MSG_PEEK | libc::MSG_WAITALL),
        ]
    };
    let lens = || prop::collection::vec(prop_oneof![Just(0_usize), 1..3000_usize], 0..12);
    prop_oneof![
        6 => (0..2_usize, len(), send).prop_map(|(at, len, flags)| Call::Send(at, len, flags)),
        6 => (0..2_usize, len(), receive())
            .prop_map(|(at, len, flags)| Call::Receive(at, len, flags)),
        3 => (0..2_usize, lens(), receive(), any::<bool>())
            .prop_map(|(at, lens, flags, sends)| Call::Message(at, lens, flags, sends)),
        3 => (0..2_usize, lens(), any::<bool>())
            .prop_map(|(at, lens, writes)| Call::Vectored(at, lens, writes)),
        1 => (0..2_usize, -1..4_i32).prop_map(|(at, how)| Call::Shutdown(at, how)),
        1 => (0..2_usize).prop_map(Call::Close),
    ]
}

fn bytes(len: usize) -> Vec<u8> {
    let pattern: Vec<u8> = (0..251).collect();
    let mut bytes = pattern.repeat(len / 251 + 1);
    bytes.truncate(len);
    bytes
}

fn list(buffers: &mut [Vec<u8>]) -> Vec<libc::iovec> {
    let entry = |buffer: &mut Vec<u8>| libc::iovec {
        iov_base: buffer.as_mut_ptr().cast(),
        iov_len: buffer.len(),
    };
    buffers.iter_mut().map(entry).collect()
}

fn message(list: &mut [libc::iovec]) -> libc::msghdr {
    // SAFETY: all zeros is a valid message.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_iov = list.as_mut_ptr();
    message.msg_iovlen = list.len();
    message.msg_flags = 77;
    message
}

/// Makes a call. Returns its outcome and the bytes and words that it wrote.
fn make(pair: &mut Pair, call: &Call) -> (Outcome, Vec<Vec<u8>>, [i64; 3]) {
    let mut wrote = Vec::new();
    let mut fields = [0; 3];
    let at = match *call {
        Call::Send(at, ..)
        | Call::Receive(at, ..)
        | Call::Message(at, ..)
        | Call::Vectored(at, ..)
        | Call::Shutdown(at, ..)
        | Call::Close(at) => at,
    };
    if pair.fds[at] < 0 {
        return (Ok(0), wrote, fields);
    }
    let outcome = match call {
        &Call::Send(at, len, flags) => pair.send(at, &bytes(len), flags),
        &Call::Receive(at, len, flags) => {
            let (outcome, buffer) = pair.recv(at, len, flags);
            wrote.push(buffer);
            outcome
        }
        Call::Message(at, lens, flags, sends) => {
            let mut buffers: Vec<_> = lens
                .iter()
                .map(|&len| if *sends { bytes(len) } else { vec![0; len] })
                .collect();
            let mut list = list(&mut buffers);
            let mut message = message(&mut list);
            let mut room = [0_u8; 64];
            let outcome = if *sends {
                pair.sendmsg(*at, &raw const message, libc::MSG_NOSIGNAL)
            } else {
                message.msg_control = room.as_mut_ptr().cast();
                message.msg_controllen = room.len();
                pair.recvmsg(*at, &raw mut message, *flags)
            };
            fields = [
                message.msg_flags.into(),
                message.msg_namelen.into(),
                message.msg_controllen as i64,
            ];
            wrote = buffers;
            outcome
        }
        Call::Vectored(at, lens, writes) => {
            let mut buffers: Vec<_> = lens
                .iter()
                .map(|&len| if *writes { bytes(len) } else { vec![0; len] })
                .collect();
            let list = list(&mut buffers);
            let count = i32::try_from(list.len()).unwrap();
            let outcome = pair.vectored(*at, &list, count, *writes);
            wrote = buffers;
            outcome
        }
        &Call::Shutdown(at, how) => pair.shutdown(at, how),
        &Call::Close(at) => {
            pair.close(at);
            Ok(0)
        }
    };
    (outcome, wrote, fields)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 500, failure_persistence: None, ..ProptestConfig::default() })]
    #[test]
    fn every_call_on_a_pair_gives_what_the_kernel_gives(calls in prop::collection::vec(call(), 1..40)) {
        let [mut kernels, mut ours] = Pair::both(libc::SOCK_NONBLOCK);
        for (at, call) in calls.iter().enumerate() {
            let expected = make(&mut kernels, call);
            prop_assert!(expected == make(&mut ours, call), "call {at}: {call:?}: {:?}", expected.0);
            for end in 0..2 {
                if kernels.fds[end] >= 0 {
                    prop_assert_eq!(kernels.available(end), ours.available(end), "{:?}", call);
                }
            }
        }
    }
}

/// Asks both the same, and wants the same answer.
fn same<T: PartialEq + std::fmt::Debug>(pairs: &[Pair; 2], what: &str, ask: impl Fn(&Pair) -> T) {
    assert_eq!(ask(&pairs[0]), ask(&pairs[1]), "{what}");
}

#[test]
fn bad_pointers_and_lengths_are_refused_as_the_kernel_refuses_them() {
    let nowhere = std::ptr::without_provenance_mut::<u8>(8);
    let beyond = std::ptr::without_provenance_mut::<u8>(usize::MAX - 100);
    let pairs = Pair::both(libc::SOCK_NONBLOCK);
    let address = [0_u8; 16];
    let long = [0_u8; 200];
    let nobody = (std::ptr::null_mut(), std::ptr::null_mut());
    let addresses: [Address; 8] = [
        NO_ADDRESS,
        (std::ptr::null(), 16),
        (address.as_ptr().cast(), 0),
        (address.as_ptr().cast(), 16),
        (long.as_ptr().cast(), 128),
        (long.as_ptr().cast(), 129),
        (long.as_ptr().cast(), u32::MAX),
        (nowhere.cast(), 16),
    ];
    for round in ["nothing there", "something there", "shut down"] {
        for base in [nowhere, beyond, std::ptr::null_mut()] {
            for len in [0, 1, 100, 4096, usize::MAX] {
                for to in addresses {
                    let what = format!("{round}: sendto {base:?} {len} {to:?}");
                    same(&pairs, &what, |pair| {
                        pair.sendto(0, (base, len), libc::MSG_NOSIGNAL, to)
                    });
                }
                for flags in [0, libc::MSG_PEEK] {
                    let what = format!("{round}: recvfrom {base:?} {len}");
                    same(&pairs, &what, |pair| {
                        pair.recvfrom(1, (base, len), flags, nobody)
                    });
                }
            }
        }
        for to in addresses {
            let bytes = [1_u8; 3];
            same(&pairs, &format!("{round}: {to:?}"), |pair| {
                pair.sendto(0, (bytes.as_ptr(), 0), libc::MSG_NOSIGNAL, to)
            });
        }
        for size in [0_i32, 16, 128, 200, -1] {
            same(&pairs, &format!("{round}: address of {size}"), |pair| {
                let (mut buffer, mut size) = ([0_u8; 1], size.cast_unsigned());
                let mut address = [7_u8; 128];
                let from = (address.as_mut_ptr().cast(), &raw mut size);
                let got = pair.recvfrom(1, (buffer.as_mut_ptr(), 1), 0, from);
                (got, size, address.to_vec())
            });
        }
        same(&pairs, "no place for the length", |pair| {
            let (mut buffer, mut address) = ([0_u8; 1], [7_u8; 128]);
            let from = (address.as_mut_ptr().cast(), nowhere.cast());
            pair.recvfrom(1, (buffer.as_mut_ptr(), 1), 0, from)
        });
        for pair in &pairs {
            match round {
                "nothing there" => assert_eq!(pair.send(0, &bytes(1000), 0), Ok(1000)),
                _ => assert_eq!(pair.shutdown(0, libc::SHUT_WR), Ok(0)),
            }
        }
    }
}

#[test]
fn a_message_is_checked_as_the_kernel_checks_it() {
    let nowhere = std::ptr::without_provenance_mut::<u8>(8);
    let pairs = Pair::both(libc::SOCK_NONBLOCK);
    let mut buffer = bytes(10);
    let good = libc::iovec {
        iov_base: buffer.as_mut_ptr().cast(),
        iov_len: 10,
    };
    let wild = libc::iovec {
        iov_base: nowhere.cast(),
        iov_len: 10,
    };
    let endless = libc::iovec {
        iov_len: usize::MAX,
        ..good
    };
    let lists: [Vec<libc::iovec>; 8] = [
        vec![],
        vec![good],
        vec![good, wild],
        vec![wild, good],
        vec![endless],
        vec![good; 1024],
        vec![good; 1025],
        vec![libc::iovec { iov_len: 0, ..wild }, good],
    ];
    let mut address = [0_u8; 200];
    for list in &lists {
        for (name, size) in [
            (std::ptr::null_mut(), 0),
            (std::ptr::null_mut(), 7),
            (address.as_mut_ptr(), 0),
            (address.as_mut_ptr(), 16),
            (address.as_mut_ptr(), 200),
            (address.as_mut_ptr(), u32::MAX),
            (nowhere, 16),
        ] {
            for sends in [true, false] {
                let what = format!("{} buffers, address of {size}, {sends}", list.len());
                same(&pairs, &what, |pair| {
                    let mut list = list.clone();
                    let mut message = message(&mut list);
                    message.msg_name = name.cast();
                    message.msg_namelen = size;
                    let outcome = match sends {
                        true => pair.sendmsg(0, &raw const message, libc::MSG_NOSIGNAL),
                        false => pair.recvmsg(1, &raw mut message, 0),
                    };
                    (outcome, message.msg_namelen, message.msg_flags)
                });
            }
        }
        for writes in [true, false] {
            let count = i32::try_from(list.len()).unwrap();
            for count in [count, -1] {
                same(&pairs, &format!("{count} buffers, {writes}"), |pair| {
                    pair.vectored(usize::from(!writes), list, count, writes)
                });
            }
        }
    }
    for sends in [true, false] {
        same(&pairs, "no message", |pair| match sends {
            true => pair.sendmsg(0, nowhere.cast(), 0),
            false => pair.recvmsg(1, nowhere.cast(), 0),
        });
    }
}

/// The whole, in pieces that come later; then the end in its midst.
#[test]
fn waiting_for_all_waits_for_all() {
    for mut pair in Pair::both(0) {
        std::thread::scope(|scope| {
            let reader = scope.spawn(|| pair.recv(1, 100, libc::MSG_WAITALL));
            for piece in bytes(100).chunks(30) {
                std::thread::sleep(Duration::from_millis(20));
                assert_eq!(pair.send(0, piece, 0), Ok(piece.len()));
            }
            assert_eq!(reader.join().unwrap(), (Ok(100), bytes(100)));
        });
        assert_eq!(pair.send(0, &bytes(40), 0), Ok(40));
        assert_eq!(
            pair.recv(1, 100, libc::MSG_WAITALL | libc::MSG_DONTWAIT).0,
            Ok(40)
        );
        assert_eq!(pair.send(0, &bytes(40), 0), Ok(40));
        // It stays, and is not waited for.
        assert_eq!(
            pair.recv(1, 100, libc::MSG_WAITALL | libc::MSG_PEEK).0,
            Ok(40)
        );
        pair.close(0);
        assert_eq!(pair.recv(1, 100, libc::MSG_WAITALL).0, Ok(40));
        assert_eq!(pair.recv(1, 100, libc::MSG_WAITALL).0, Ok(0));
    }
}

extern "C" fn do_nothing(_: i32) {}

/// Even of a handler with `SA_RESTART`, once a part is there.
#[test]
fn a_signal_ends_waiting_for_all_with_what_is_there() {
    let handler: extern "C" fn(i32) = do_nothing;
    // SAFETY: the handler does nothing; all zeros is a valid sigaction.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = handler as usize;
        action.sa_flags = libc::SA_RESTART;
        libc::sigaction(libc::SIGUSR2, &raw const action, std::ptr::null_mut());
    }
    for pair in Pair::both(0) {
        assert_eq!(pair.send(0, &bytes(10), 0), Ok(10));
        // SAFETY: no pointers are involved.
        let waiting = unsafe { libc::gettid() };
        let is_over = std::sync::atomic::AtomicBool::new(false);
        std::thread::scope(|scope| {
            let is_over = &is_over;
            scope.spawn(move || {
                while !is_over.load(std::sync::atomic::Ordering::SeqCst) {
                    std::thread::sleep(Duration::from_millis(10));
                    // SAFETY: no pointers are involved; the thread waits for this one's end.
                    unsafe {
                        libc::syscall(libc::SYS_tgkill, libc::getpid(), waiting, libc::SIGUSR2)
                    };
                }
            });
            assert_eq!(pair.recv(1, 100, libc::MSG_WAITALL).0, Ok(10));
            is_over.store(true, std::sync::atomic::Ordering::SeqCst);
        });
    }
}

/// Calls on fds that are no sockets, and calls that the kernel object behind an fd answers.
#[test]
fn other_fds_answer_as_the_kernels_do() {
    let mut pipes = [[-1; 2]; 2];
    // SAFETY: no pointers are involved.
    let their_counter = unsafe { libc::eventfd(1, libc::EFD_NONBLOCK) };
    // SAFETY: there is room for two fds each.
    unsafe {
        assert_eq!(libc::pipe(pipes[0].as_mut_ptr()), 0);
        upoll_fds::pipe(&raw mut pipes[1]).unwrap();
    }
    let our_counter = upoll_fds::eventfd(1, libc::EFD_NONBLOCK).unwrap();
    let pairs = Pair::both(0);
    let kinds = [
        [their_counter, our_counter],
        [pipes[0][0], pipes[1][0]],
        [pipes[0][1], pipes[1][1]],
        [pairs[0].fds[0], pairs[1].fds[0]],
    ];
    for [theirs_fd, ours_fd] in kinds {
        let asked = [theirs_fd, ours_fd].map(|fd| {
            let mut buffer = [0_u8; 8];
            let room: *mut libc::c_void = buffer.as_mut_ptr().cast();
            // SAFETY: the buffers are live and large enough.
            unsafe {
                let mut stat: libc::stat = std::mem::zeroed();
                assert_eq!(libc::fstat(fd, &raw mut stat), 0);
                let mut address: libc::sockaddr_un = std::mem::zeroed();
                let mut size = 110;
                let name = libc::getsockname(fd, (&raw mut address).cast(), &raw mut size);
                let (mut kind, mut len) = (0_i32, 4);
                let level = (libc::SOL_SOCKET, libc::SO_TYPE);
                let option = (&raw mut kind).cast();
                let option = libc::getsockopt(fd, level.0, level.1, option, &raw mut len);
                (
                    theirs(libc::lseek(fd, 3, libc::SEEK_SET) as isize),
                    theirs(libc::pread(fd, room, 8, 0)),
                    theirs(libc::pwrite(fd, room, 8, 0)),
                    theirs(libc::ftruncate(fd, 1) as isize),
                    (stat.st_mode, stat.st_size, stat.st_blksize),
                    (theirs(name as isize), size, address.sun_family),
                    (theirs(option as isize), kind),
                    libc::fcntl(fd, libc::F_GETFL),
                )
            }
        });
        assert_eq!(asked[0], asked[1]);
    }
    // No sockets.
    for [theirs_fd, ours_fd] in [kinds[0], kinds[1]] {
        let mut buffer = [0_u8; 8];
        let (base, len) = (buffer.as_mut_ptr(), 8);
        // SAFETY: the buffer is live.
        unsafe {
            assert_eq!(
                theirs(libc::send(theirs_fd, base.cast(), len, 0)),
                ours(upoll_fds::send(ours_fd, base, len, 0))
            );
            assert_eq!(
                theirs(libc::recv(theirs_fd, base.cast(), len, 0)),
                ours(upoll_fds::recv(ours_fd, base, len, 0))
            );
        }
    }
    for [theirs_fd, ours_fd] in &kinds[..3] {
        // SAFETY: the fds are the test's.
        unsafe { libc::close(*theirs_fd) };
        upoll_fds::close(*ours_fd).unwrap();
    }
}
