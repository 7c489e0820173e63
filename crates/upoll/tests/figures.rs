//! Figures beside the kernel's own in the same run, for what must not grow faster than the kernel's does.
//! They depend on the machine, so the tests print them and are run by hand:
//! `cargo test --release -p upoll --test figures -- --ignored --nocapture --test-threads 1`
#![cfg(not(loom))]

use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::time::{Duration, Instant};

use upoll::{Epoll, Event, EventFd, Events, PollContext, PollFd};

const IN: Event = Event::new(Events::IN, 0);

fn timed<T>(run: impl FnOnce() -> T) -> (T, Duration) {
    let begun = Instant::now();
    (run(), begun.elapsed())
}

fn owned(fd: libc::c_int) -> OwnedFd {
    assert!(fd >= 0, "{}", std::io::Error::last_os_error());
    // SAFETY: the call that returned it has just made it.
    unsafe { OwnedFd::from_raw_fd(fd) }
}

/// A set of the kernel's.
struct KernelSet(OwnedFd);

impl KernelSet {
    fn new() -> Self {
        // SAFETY: no pointers are involved.
        KernelSet(owned(unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) }))
    }

    fn add(&self, fd: &impl AsRawFd) {
        let mut event = libc::epoll_event {
            events: Events::IN.bits(),
            u64: 0,
        };
        let (set, fd) = (self.0.as_raw_fd(), fd.as_raw_fd());
        // SAFETY: the event is live.
        let added = unsafe { libc::epoll_ctl(set, libc::EPOLL_CTL_ADD, fd, &raw mut event) };
        assert_eq!(added, 0, "{}", std::io::Error::last_os_error());
    }

    fn is_ready(&self) -> bool {
        let mut entry = libc::pollfd {
            fd: self.0.as_raw_fd(),
            events: libc::POLLIN,
            revents: 0,
        };
        // SAFETY: one live entry.
        unsafe { libc::poll(&raw mut entry, 1, 0) == 1 }
    }
}

fn allow_fds(wanted: u64) -> bool {
    let mut limit = libc::rlimit {
        rlim_cur: 0,
        rlim_max: 0,
    };
    // SAFETY: the structure is there to be filled, and read.
    unsafe {
        assert_eq!(libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit), 0);
        limit.rlim_cur = limit.rlim_max;
        libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit) == 0 && limit.rlim_max >= wanted
    }
}

#[test]
#[ignore = "prints figures"]
fn nested_add_at_widths_up_to_320() {
    assert!(allow_fds(1 << 11));
    for width in [80, 160, 320] {
        let layers = [(); 2].map(|()| {
            (0..width)
                .map(|_| Epoll::new().unwrap())
                .collect::<Vec<_>>()
        });
        let [top, above] = [(); 2].map(|()| Epoll::new().unwrap());
        for outer in &layers[0] {
            for inner in &layers[1] {
                outer.add(inner, IN).unwrap();
            }
            top.add(outer, IN).unwrap();
        }
        let ((), ours) = timed(|| above.add(&top, IN).unwrap());
        let layers = [(); 2].map(|()| (0..width).map(|_| KernelSet::new()).collect::<Vec<_>>());
        let [top, above] = [(); 2].map(|()| KernelSet::new());
        for outer in &layers[0] {
            for inner in &layers[1] {
                outer.add(&inner.0);
            }
            top.add(&outer.0);
        }
        let ((), kernels) = timed(|| above.add(&top.0));
        println!("nested ADD, width {width}: {ours:?}, kernel {kernels:?}");
    }
}

#[test]
#[ignore = "prints figures"]
fn a_look_from_above_at_up_to_100_000_ready_members() {
    const LOOKS: u32 = 10_000;
    for ready in [100_u64, 10_000, 100_000] {
        let [set, nested] = [(); 2].map(|()| Epoll::new().unwrap());
        set.add(&nested, IN).unwrap();
        let counters: Vec<_> = (0..ready).map(|_| EventFd::new(1).unwrap()).collect();
        for counter in &counters {
            set.add(counter, IN).unwrap();
        }
        let looks = || (0..LOOKS).all(|_| set.as_file_ref().is_ready(Events::IN));
        let (all, ours) = timed(looks);
        assert!(all);
        if !allow_fds(ready + 1_000) {
            println!(
                "a look at {ready} ready: {:?}, no fds for the kernel's",
                ours / LOOKS
            );
            continue;
        }
        let [set, nested] = [(); 2].map(|()| KernelSet::new());
        set.add(&nested.0);
        // SAFETY: no pointers are involved.
        let counter = owned(unsafe { libc::eventfd(1, libc::EFD_CLOEXEC) });
        let counters: Vec<_> = (0..ready).map(|_| counter.try_clone().unwrap()).collect();
        counters.iter().for_each(|counter| set.add(counter));
        let (all, kernels) = timed(|| (0..LOOKS).all(|_| set.is_ready()));
        assert!(all);
        let (ours, kernels) = (ours / LOOKS, kernels / LOOKS);
        println!("a look at {ready} ready: {ours:?}, kernel {kernels:?} with its system call");
    }
}

#[test]
#[ignore = "prints figures"]
fn a_poll_context_whose_fds_all_change() {
    assert!(allow_fds(20_000));
    for count in [1_000_u32, 2_000, 4_000, 8_000] {
        // SAFETY: no pointers are involved.
        let make = || owned(unsafe { libc::eventfd(0, libc::EFD_CLOEXEC) });
        let sides = [(); 2].map(|()| (0..count).map(|_| make()).collect::<Vec<_>>());
        let mut context = PollContext::new();
        let mut longest = Duration::ZERO;
        for round in 0..6 {
            let fds = sides[round % 2]
                .iter()
                .map(|fd| PollFd::new(fd, Events::IN));
            let mut fds: Vec<_> = fds.collect();
            let (found, took) = timed(|| context.poll(&mut fds, Duration::ZERO).unwrap());
            assert_eq!(found, 0);
            longest = longest.max(took);
        }
        let list = sides[0].iter().map(|fd| libc::pollfd {
            fd: fd.as_raw_fd(),
            events: libc::POLLIN,
            revents: 0,
        });
        let mut list: Vec<_> = list.collect();
        // SAFETY: the list is as long as is claimed.
        let (_, kernels) = timed(|| unsafe { libc::poll(list.as_mut_ptr(), count.into(), 0) });
        println!(
            "a PollContext, {count} fds changed: {:?} each, kernel's poll {:?} each",
            longest / count,
            kernels / count
        );
    }
}

/// Resident memory, and memory that was allocated and not freed, in KiB.
fn memory() -> [usize; 2] {
    // SAFETY: no pointers are involved. The allocator keeps freed memory otherwise.
    unsafe { libc::malloc_trim(0) };
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
    let pages: usize = statm.split_whitespace().nth(1).unwrap().parse().unwrap();
    // SAFETY: no pointers are involved.
    let allocated = unsafe { libc::mallinfo2() };
    [pages * 4, (allocated.uordblks + allocated.hblkhd) >> 10]
}

#[test]
#[ignore = "prints figures"]
fn a_million_adds_and_deletes_leave_no_memory_behind() {
    let set = Epoll::new().unwrap();
    let counters: Vec<_> = (0..1_000_000).map(|_| EventFd::new(0).unwrap()).collect();
    for round in 0..3 {
        let before = memory();
        for counter in &counters {
            set.add(counter, IN).unwrap();
        }
        let most = memory();
        for counter in &counters {
            set.delete(counter).unwrap();
        }
        let after = memory();
        println!(
            "a million ADDs and DELs, round {round}: KiB resident and allocated {before:?} before, \
             {most:?} with all, {after:?} after"
        );
        assert!(after[1] < before[1] + 64);
    }
}
