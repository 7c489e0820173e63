//! Processes that are killed in the middle of an operation on a shared eventfd.

use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::sleep;
use std::time::{Duration, Instant};

use upoll::{Epoll, Errno, Event, EventFd, EventFdFlags, Events, PollFd};

use crate::processes::{Child, Stepped, shared_numbers, stay_on_this_cpu, tests};

tests![
    a_process_that_is_killed_blocks_nobody_and_loses_nothing,
    a_writer_killed_at_any_point_leaves_no_reader_asleep,
    a_reader_killed_at_any_point_leaves_no_writer_asleep,
    a_process_that_is_killed_asleep_is_not_missed,
    where_the_kernel_does_not_tell_the_robust_list_that_of_the_c_library_stays,
    where_gettid_is_refused_a_process_that_is_killed_blocks_nobody_and_loses_nothing,
];

const LONG: Duration = Duration::from_secs(60);
const SHORT: Duration = Duration::from_millis(100);

/// Pseudo-random numbers (xorshift).
struct Random(u64);

impl Random {
    fn next(&mut self, below: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % below
    }
}

fn seed() -> Random {
    let now = std::time::SystemTime::now();
    let since = now.duration_since(std::time::UNIX_EPOCH).unwrap();
    let seed = since.subsec_nanos() | 1;
    println!("seed {seed}");
    Random(seed.into())
}

/// The operations of one process on the count, in memory that outlives the process.
#[derive(Clone, Copy)]
struct Tally(&'static [AtomicU64]);

const ADDED: usize = 0;
const TAKEN: usize = 1;
/// An operation has begun and is not counted yet.
const BEGUN: usize = 2;
const TALLY: usize = 3;

impl Tally {
    fn note(self, which: usize, operation: impl FnOnce() -> bool) {
        self.0[BEGUN].store(1, Ordering::SeqCst);
        if operation() {
            self.0[which].fetch_add(1, Ordering::SeqCst);
        }
        self.0[BEGUN].store(0, Ordering::SeqCst);
    }

    fn get(self, which: usize) -> u64 {
        self.0[which].load(Ordering::SeqCst)
    }
}

/// Waits until the counter is readable, or for a short time.
type Wait = fn(&EventFd, &Epoll);

const WAYS: [Wait; 3] = [
    |_, set| {
        set.wait(&mut [Event::default()], SHORT).unwrap();
    },
    |counter, _| {
        upoll::poll(&mut [PollFd::new(counter, Events::IN)], SHORT).unwrap();
    },
    |_, _| (),
];

/// Writes and reads until the process is killed.
fn toil(counter: &EventFd, tally: Tally, role: usize) {
    if role == 2 {
        // Like a child of a bare `clone(2)`, which the C library does not know: it has no robust
        // list.
        // SAFETY: the thread has no robust mutex, and ends without one.
        unsafe { libc::syscall(libc::SYS_set_robust_list, 0, 24) };
    }
    let set = Epoll::new().unwrap();
    set.add(counter, Event::new(Events::IN | Events::ET, 0))
        .unwrap();
    for round in 0_u64.. {
        tally.note(ADDED, || match round % 7 {
            // A write always fits, because the maximum is out of reach.
            0 => {
                counter.signal();
                true
            }
            _ => counter.try_write(1).is_ok(),
        });
        if round % 5 == 0 {
            let _ = counter.set_maximum(1_000_000 + round % 3);
        }
        WAYS[role](counter, &set);
        tally.note(TAKEN, || counter.try_read().is_ok());
    }
}

fn a_process_that_is_killed_blocks_nobody_and_loses_nothing() {
    processes_are_killed(400, || {});
}

/// The library learns the ids of its threads in another way.
fn where_gettid_is_refused_a_process_that_is_killed_blocks_nobody_and_loses_nothing() {
    processes_are_killed(100, || refuse(libc::SYS_gettid));
}

/// Kills processes at random moments. Each calls `begin` first.
fn processes_are_killed(rounds: usize, begin: fn()) {
    let mut random = seed();
    let counter = EventFd::shared(0, EventFdFlags::SEMAPHORE).unwrap();
    counter.set_maximum(1_000_000).unwrap();
    let numbers = shared_numbers((rounds + 8) * TALLY);
    let mut tallies = numbers.chunks(TALLY).map(Tally);
    let mut used = Vec::new();
    let mut start = |role| {
        let tally = tallies.next().unwrap();
        used.push(tally);
        Child::new(|_| {
            begin();
            toil(&counter, tally, role);
        })
    };
    let mut victims: Vec<_> = (0..4).map(|at| start(at % WAYS.len())).collect();
    for round in 0..rounds {
        sleep(Duration::from_micros(random.next(2_000)));
        let at = usize::try_from(random.next(4)).unwrap();
        victims.swap_remove(at).kill();
        // The next process to take the lock finds it free.
        assert!(counter.maximum() >= 1_000_000);
        victims.push(start(round % WAYS.len()));
    }
    let sum = |which| used.iter().map(|tally| tally.get(which)).sum::<u64>();
    // On a busy machine the processes hardly run before they are killed.
    until("they hardly do anything", || sum(ADDED) > 10_000);
    for victim in victims {
        victim.kill();
    }
    let (added, taken, begun) = (sum(ADDED), sum(TAKEN), sum(BEGUN));
    let mut left = 0;
    while counter.try_read().is_ok() {
        left += 1;
    }
    println!("added {added}, taken {taken}, left {left}, unknown {begun}");
    assert!(added.abs_diff(taken + left) <= begun);
}

/// Reads each time the counter is readable, and sleeps in between.
fn read_always(counter: &EventFd, role: usize) {
    let set = Epoll::new().unwrap();
    let interest = Event::new(Events::IN | Events::ET, 0);
    set.add(counter, interest).unwrap();
    loop {
        match role {
            0 => drop(counter.read().unwrap()),
            1 => {
                set.wait(&mut [interest], None).unwrap();
                // The writer may have been killed after it woke the reader and before it wrote.
                let _ = counter.try_read();
            }
            _ => {
                upoll::poll(&mut [PollFd::new(counter, Events::IN)], None).unwrap();
                let _ = counter.try_read();
            }
        }
    }
}

/// Kills processes in the middle of `operation`, after as many different numbers of instructions as
/// [`POINTS`]: other ones in each run. Calls `check` after each, with `sleeper` asleep.
fn killed_at_any_point(sleeper: &Child, operation: impl Fn(), check: impl Fn()) {
    // A step on the tracer's own CPU takes a fraction of the time of one on another.
    stay_on_this_cpu();
    let mut whole = Stepped::new(&operation);
    let mut length = 0_u64;
    while !whole.is_done {
        whole.step();
        length += 1;
    }
    whole.kill();
    let check = || {
        sleeper.until_state_is_sleep();
        check();
        sleeper.until_state_is_sleep();
    };
    check();
    let points = length.min(POINTS);
    println!("{length} steps, killed at {points}");
    let first = seed().next(length / points);
    for point in 0..points {
        let mut killed = Stepped::new(&operation);
        for _ in 0..first + length * point / points {
            killed.step();
            // The operation is shorter if the sleeper was not listening yet.
            if killed.is_done {
                break;
            }
        }
        killed.kill();
        check();
    }
}

const POINTS: u64 = 200;

fn until(what: &str, is_so: impl Fn() -> bool) {
    let begun = Instant::now();
    while !is_so() {
        assert!(begun.elapsed() < LONG, "{what}");
    }
}

fn a_writer_killed_at_any_point_leaves_no_reader_asleep() {
    for role in 0..3 {
        let counter = EventFd::shared(0, EventFdFlags::empty()).unwrap();
        let reader = Child::new(|_| read_always(&counter, role));
        let write = || counter.try_write(1).unwrap();
        reader.until_state_is_sleep();
        killed_at_any_point(&reader, write, || {
            let left = counter.try_read();
            assert_eq!(
                left,
                Err(Errno::AGAIN),
                "asleep by {role}, and something to read"
            );
            // The next write still wakes the reader.
            write();
            until("nobody reads", || {
                !counter.as_file_ref().is_ready(Events::IN)
            });
        });
        reader.kill();
    }
}

fn a_reader_killed_at_any_point_leaves_no_writer_asleep() {
    let counter = EventFd::shared(0, EventFdFlags::SEMAPHORE).unwrap();
    counter.set_maximum(4).unwrap();
    let writer = Child::new(|_| {
        loop {
            counter.write(1).unwrap();
        }
    });
    let is_full = || counter.try_write(1) == Err(Errno::AGAIN);
    until("nobody writes", is_full);
    writer.until_state_is_sleep();
    let read = || assert_eq!(counter.try_read(), Ok(1));
    killed_at_any_point(&writer, read, || {
        assert!(is_full(), "asleep, and room for more");
        read();
        until("nobody writes", || {
            !counter.as_file_ref().is_ready(Events::OUT)
        });
    });
    writer.kill();
}

fn a_process_that_is_killed_asleep_is_not_missed() {
    let counter = EventFd::shared(0, EventFdFlags::empty()).unwrap();
    for role in 0..3 {
        let mut readers: Vec<_> = (0..4)
            .map(|_| Child::new(|_| read_always(&counter, role)))
            .collect();
        sleep(Duration::from_millis(30));
        readers.iter().for_each(Child::until_state_is_sleep);
        let last = readers.pop().unwrap();
        for reader in readers {
            reader.kill();
        }
        for _ in 0..100 {
            counter.try_write(1).unwrap();
            until("nobody reads", || {
                !counter.as_file_ref().is_ready(Events::IN)
            });
        }
        last.kill();
    }
}

/// Makes a system call fail with `EPERM` from now on, as a filter of system calls may.
fn refuse(number: libc::c_long) {
    let step = |code: u32, jf: u8, k: u32| libc::sock_filter {
        code: u16::try_from(code).unwrap(),
        jt: 0,
        jf,
        k,
    };
    let number = u32::try_from(number).unwrap();
    let mut steps = [
        step(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0),
        step(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, 1, number),
        step(
            libc::BPF_RET | libc::BPF_K,
            0,
            libc::SECCOMP_RET_ERRNO | libc::EPERM.cast_unsigned(),
        ),
        step(libc::BPF_RET | libc::BPF_K, 0, libc::SECCOMP_RET_ALLOW),
    ];
    let program = libc::sock_fprog {
        len: u16::try_from(steps.len()).unwrap(),
        filter: steps.as_mut_ptr(),
    };
    // SAFETY: the filter is live, and the kernel copies it.
    unsafe {
        assert_eq!(libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
        let (call, filter) = (libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER);
        assert_eq!(libc::prctl(call, filter, &raw const program), 0);
    }
}

/// The program learns of the death of an owner of its own robust mutex.
fn where_the_kernel_does_not_tell_the_robust_list_that_of_the_c_library_stays() {
    let counter = EventFd::shared(0, EventFdFlags::empty()).unwrap();
    let room = shared_numbers(size_of::<libc::pthread_mutex_t>().div_ceil(size_of::<u64>()));
    let mutex: *mut libc::pthread_mutex_t = room.as_ptr().cast_mut().cast();
    // SAFETY: the memory is the mutex's, large enough, and never unmapped; the attributes are live.
    unsafe {
        let mut kind = std::mem::zeroed();
        assert_eq!(libc::pthread_mutexattr_init(&raw mut kind), 0);
        let (shared, robust) = (libc::PTHREAD_PROCESS_SHARED, libc::PTHREAD_MUTEX_ROBUST);
        assert_eq!(libc::pthread_mutexattr_setpshared(&raw mut kind, shared), 0);
        assert_eq!(libc::pthread_mutexattr_setrobust(&raw mut kind, robust), 0);
        assert_eq!(libc::pthread_mutex_init(mutex, &raw const kind), 0);
    }
    let owner = Child::new(|_| {
        refuse(libc::SYS_get_robust_list);
        counter.try_write(1).unwrap();
        // SAFETY: as above.
        assert_eq!(unsafe { libc::pthread_mutex_lock(mutex) }, 0);
    });
    assert_eq!(owner.join(), Ok(0));
    assert_eq!(counter.try_read(), Ok(1));
    // SAFETY: as above.
    let tried = unsafe { libc::pthread_mutex_trylock(mutex) };
    assert_eq!(tried, libc::EOWNERDEAD);
}
