//! Every kind of kernel fd that can be polled: level-triggered, edge-triggered and oneshot
//! interests in it report what the kernel's own sets report.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream, UdpSocket};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::net::{UnixDatagram, UnixStream};
use std::time::Duration;

use upoll::{Errno, Event, Events, Op};

use super::host::alone;
use crate::host::{
    Both, Kernel, LONG, edge, eventfd, eventfd_read, eventfd_write, input, last_errno, owned, pipe,
};

const EVERYTHING: Events = Events::IN
    .union(Events::OUT)
    .union(Events::PRI)
    .union(Events::RDHUP)
    .union(Events::RDNORM)
    .union(Events::RDBAND)
    .union(Events::WRNORM)
    .union(Events::WRBAND);

/// Waits until the kernel reports `events` for `fd`: the network may be slow.
fn until(fd: &impl AsFd, events: Events) {
    let mut entry = libc::pollfd {
        fd: fd.as_fd().as_raw_fd(),
        events: i16::try_from(events.bits()).unwrap(),
        revents: 0,
    };
    // SAFETY: one live pollfd.
    assert_eq!(unsafe { libc::poll(&raw mut entry, 1, 60_000) }, 1);
}

/// Watches `fd` in all ways. `poke` makes it ready for `IN`, which is an event each time, and
/// `calm` undoes that.
fn check(fd: &impl AsFd, mut poke: impl FnMut(), mut calm: impl FnMut()) {
    // The witness registers first, so it is notified last: after its event the others have theirs.
    let witness = Kernel::new();
    witness.add(&fd.as_fd(), edge(0));
    let mut poke = || {
        witness.try_wait(1);
        poke();
        assert_eq!(witness.wait(1, LONG).len(), 1);
    };
    let level = Both::new();
    let edges = Both::new();
    let once = Both::new();
    level.add(fd, Event::new(EVERYTHING, 1));
    edges.add(fd, Event::new(EVERYTHING | Events::ET, 2));
    once.add(fd, Event::new(EVERYTHING | Events::ONESHOT, 3));
    for _ in 0..3 {
        for _ in 0..2 {
            poke();
            assert_ne!(level.try_wait(), []);
            for _ in 0..2 {
                level.try_wait();
                edges.try_wait();
                once.try_wait();
            }
        }
        once.modify(fd, Event::new(Events::IN | Events::ONESHOT, 4));
        edges.modify(fd, edge(5));
        assert_eq!(once.try_wait(), [(4, Events::IN)]);
        assert_eq!(once.try_wait(), []);
        assert_eq!(edges.try_wait(), [(5, Events::IN)]);
        assert_eq!(edges.try_wait(), []);
        calm();
        for set in [&level, &edges, &once] {
            set.try_wait();
            set.try_wait();
        }
    }
    for set in [&level, &edges, &once] {
        set.delete(fd);
        poke();
        assert_eq!(set.try_wait(), []);
    }
}

#[test]
fn tcp_streams() {
    let _alone = alone();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (far, _) = listener.accept().unwrap();
    let drain = far.try_clone().unwrap();
    drain.set_nonblocking(true).unwrap();
    check(
        &far,
        || near.write_all(b"x").unwrap(),
        || while (&drain).read(&mut [0; 64]).is_ok() {},
    );
}

#[test]
fn tcp_listeners() {
    let _alone = alone();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    listener.set_nonblocking(true).unwrap();
    let mut clients = Vec::new();
    check(
        &listener,
        || clients.push(TcpStream::connect(listener.local_addr().unwrap()).unwrap()),
        || while listener.accept().is_ok() {},
    );
}

#[test]
fn udp_sockets() {
    let _alone = alone();
    let far = UdpSocket::bind("127.0.0.1:0").unwrap();
    far.set_nonblocking(true).unwrap();
    let near = UdpSocket::bind("127.0.0.1:0").unwrap();
    near.connect(far.local_addr().unwrap()).unwrap();
    check(
        &far,
        || assert_eq!(near.send(b"x").unwrap(), 1),
        || while far.recv(&mut [0; 64]).is_ok() {},
    );
}

#[test]
fn unix_sockets() {
    let _alone = alone();
    let (mut near, far) = UnixStream::pair().unwrap();
    far.set_nonblocking(true).unwrap();
    check(
        &far,
        || near.write_all(b"x").unwrap(),
        || while (&far).read(&mut [0; 64]).is_ok() {},
    );
    let (near, far) = UnixDatagram::pair().unwrap();
    far.set_nonblocking(true).unwrap();
    check(
        &far,
        || assert_eq!(near.send(b"x").unwrap(), 1),
        || while far.recv(&mut [0; 64]).is_ok() {},
    );
}

#[test]
fn pipes() {
    let _alone = alone();
    let (reader, mut writer) = pipe();
    let mut drain = reader.try_clone().unwrap();
    check(
        &reader,
        || writer.write_all(b"x").unwrap(),
        || assert_ne!(drain.read(&mut [0; 64]).unwrap(), 0),
    );
    // The write end: full, then broken.
    let (mut reader, writer) = pipe();
    let sets = [Both::new(), Both::new()];
    sets[0].add(&writer, Event::new(Events::OUT, 1));
    sets[1].add(&writer, Event::new(Events::OUT | Events::ET, 2));
    let try_wait = || sets.each_ref().map(Both::try_wait);
    assert_eq!(try_wait(), [vec![(1, Events::OUT)], vec![(2, Events::OUT)]]);
    (&writer).write_all(&[0; 65536]).unwrap();
    assert_eq!(try_wait(), [vec![], vec![]]);
    reader.read_exact(&mut [0; 65536]).unwrap();
    assert_eq!(try_wait(), [vec![(1, Events::OUT)], vec![(2, Events::OUT)]]);
    drop(reader);
    let broken = Events::OUT | Events::ERR;
    assert_eq!(try_wait(), [vec![(1, broken)], vec![(2, broken)]]);
}

#[test]
fn eventfds() {
    let _alone = alone();
    let counter = eventfd();
    check(
        &counter,
        || eventfd_write(&counter),
        || eventfd_read(&counter),
    );
}

#[test]
fn timerfds() {
    let _alone = alone();
    // SAFETY: the call takes no pointers.
    let timer = owned(unsafe {
        libc::timerfd_create(
            libc::CLOCK_MONOTONIC,
            libc::TFD_CLOEXEC | libc::TFD_NONBLOCK,
        )
    });
    let arm = || {
        let soon = libc::itimerspec {
            it_interval: libc::timespec {
                tv_sec: 0,
                tv_nsec: 0,
            },
            it_value: libc::timespec {
                tv_sec: 0,
                tv_nsec: 1,
            },
        };
        // SAFETY: the limit is live and the old value is not requested.
        let done = unsafe {
            libc::timerfd_settime(timer.as_raw_fd(), 0, &raw const soon, std::ptr::null_mut())
        };
        assert_eq!(done, 0);
        until(&timer, Events::IN);
    };
    let mut drain = std::fs::File::from(timer.try_clone().unwrap());
    check(&timer, arm, || drop(drain.read(&mut [0; 8])));
}

#[test]
fn signalfds() {
    let _alone = alone();
    // Each instance of a real-time signal is an event, even while others are pending.
    let signal = libc::SIGRTMIN() + 3;
    // The signal is sent to this thread, which blocks it, so no other thread receives it.
    // SAFETY: the calls fill `mask`, and the other pointers are null or live.
    let signals = unsafe {
        let mut mask = std::mem::zeroed();
        libc::sigemptyset(&raw mut mask);
        libc::sigaddset(&raw mut mask, signal);
        libc::pthread_sigmask(libc::SIG_BLOCK, &raw const mask, std::ptr::null_mut());
        owned(libc::signalfd(
            -1,
            &raw const mask,
            libc::SFD_CLOEXEC | libc::SFD_NONBLOCK,
        ))
    };
    let mut drain = std::fs::File::from(signals.try_clone().unwrap());
    check(
        &signals,
        || {
            // SAFETY: this thread is alive.
            unsafe { libc::pthread_kill(libc::pthread_self(), signal) };
        },
        || while drain.read(&mut [0; 128]).is_ok() {},
    );
    while drain.read(&mut [0; 128]).is_ok() {}
}

#[test]
fn inotify() {
    let _alone = alone();
    // SAFETY: the call takes no pointers.
    let watch = owned(unsafe { libc::inotify_init1(libc::IN_CLOEXEC | libc::IN_NONBLOCK) });
    let folder = std::env::temp_dir().join(format!("upoll-inotify-{}", std::process::id()));
    // A process with this ID may have left it.
    let _ = std::fs::remove_dir_all(&folder);
    std::fs::create_dir(&folder).unwrap();
    let path = std::ffi::CString::new(folder.to_str().unwrap()).unwrap();
    // SAFETY: the path is a live string.
    let added =
        unsafe { libc::inotify_add_watch(watch.as_raw_fd(), path.as_ptr(), libc::IN_CREATE) };
    assert!(added >= 0);
    let mut files = 0;
    let mut drain = std::fs::File::from(watch.try_clone().unwrap());
    check(
        &watch,
        || {
            files += 1;
            std::fs::write(folder.join(files.to_string()), "").unwrap();
        },
        || while drain.read(&mut [0; 4096]).is_ok() {},
    );
    std::fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn terminals() {
    let _alone = alone();
    let (mut near, mut far) = (-1, -1);
    // SAFETY: two live numbers to fill; no name, attributes or size are given.
    let opened = unsafe {
        libc::openpty(
            &raw mut near,
            &raw mut far,
            std::ptr::null_mut(),
            std::ptr::null(),
            std::ptr::null(),
        )
    };
    assert_eq!(opened, 0, "{:?}", last_errno());
    let (near, far) = (owned(near), owned(far));
    // SAFETY: `far` is a terminal, and `mode` is filled before it is read.
    unsafe {
        let mut mode = std::mem::zeroed();
        libc::tcgetattr(far.as_raw_fd(), &raw mut mode);
        mode.c_lflag &= !libc::ECHO;
        libc::tcsetattr(far.as_raw_fd(), libc::TCSANOW, &raw const mode);
    }
    let mut terminal = std::fs::File::from(near);
    let mut program = std::fs::File::from(far.try_clone().unwrap());
    check(
        &far,
        || terminal.write_all(b"line\n").unwrap(),
        || {
            // Terminal input arrives line by line.
            let one = Both::new();
            one.add(&far, input(0));
            while !one.try_wait().is_empty() {
                assert_eq!(program.read(&mut [0; 64]).unwrap(), 5);
            }
        },
    );
}

#[test]
fn sets_of_the_kernel() {
    let _alone = alone();
    let inner = Kernel::new();
    let counter = eventfd();
    inner.add(&counter, input(9));
    check(
        &inner.0,
        || eventfd_write(&counter),
        || eventfd_read(&counter),
    );
}

#[test]
fn what_cannot_be_polled_gives_eperm() {
    let _alone = alone();
    let both = Both::new();
    let regular = std::fs::File::open("/proc/self/exe").unwrap();
    let folder = std::fs::File::open("/").unwrap();
    for fd in [regular.as_fd(), folder.as_fd()] {
        for op in [Op::Add, Op::Mod, Op::Del] {
            assert_eq!(both.ctl(op, fd, input(1)), Err(Errno::PERM));
        }
    }
    assert!(both.ours.is_empty());
}

#[test]
fn hang_ups_and_errors_are_reported_unasked() {
    let _alone = alone();
    let both = Both::new();
    let (near, far) = UnixStream::pair().unwrap();
    both.add(&far, Event::new(Events::empty(), 1));
    let (reader, writer) = pipe();
    both.add(&reader, Event::new(Events::empty(), 2));
    let (reader_to_go, broken) = pipe();
    both.add(&broken, Event::new(Events::ET, 3));
    assert_eq!(both.try_wait(), []);
    drop(near);
    drop(writer);
    drop(reader_to_go);
    let hup = Events::HUP;
    assert_eq!(both.try_wait(), [(1, hup), (2, hup), (3, Events::ERR)]);
    assert_eq!(both.try_wait(), [(1, hup), (2, hup)]);
}

#[test]
fn a_half_closed_stream_shows_rdhup_and_urgent_data_shows_pri() {
    let _alone = alone();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (far, _) = listener.accept().unwrap();
    let both = Both::new();
    both.add(
        &far,
        Event::new(Events::IN | Events::PRI | Events::RDHUP, 1),
    );
    assert_eq!(both.try_wait(), []);
    // SAFETY: one live byte.
    let sent = unsafe { libc::send(near.as_raw_fd(), b"!".as_ptr().cast(), 1, libc::MSG_OOB) };
    assert_eq!(sent, 1);
    until(&far, Events::PRI);
    assert_eq!(both.try_wait(), [(1, Events::PRI)]);
    near.shutdown(std::net::Shutdown::Write).unwrap();
    until(&far, Events::RDHUP);
    let all = Events::IN | Events::PRI | Events::RDHUP;
    assert_eq!(both.try_wait(), [(1, all)]);
    near.shutdown(std::net::Shutdown::Both).unwrap();
    far.shutdown(std::net::Shutdown::Both).unwrap();
    until(&far, Events::HUP);
    assert_eq!(both.try_wait(), [(1, all | Events::HUP)]);
    std::thread::sleep(Duration::from_millis(1));
    let _: OwnedFd = far.into();
    assert_eq!(both.try_wait(), []);
}
