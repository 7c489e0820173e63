//! The resident memory of a million objects, as the kernel counts it.
#![cfg(feature = "std")]
#![cfg(all(not(upoll_loom), target_env = "gnu"))]

use upoll::{Epoll, Event, EventFd, Events};

const MANY: usize = 1_000_000;

/// Returns the resident memory of the process in bytes, without what has been freed and the
/// allocator keeps.
fn resident() -> usize {
    // SAFETY: no memory that is in use changes.
    unsafe { libc::malloc_trim(0) };
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let size = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kibibytes = size.and_then(|size| size.trim().strip_suffix(" kB"));
    kibibytes.unwrap().parse::<usize>().unwrap() * 1024
}

// One test: tests of one file run in parallel and would count each other's memory.
#[test]
fn a_million_objects_are_small_and_a_set_gives_the_memory_of_its_items_back() {
    let mut counters = Vec::with_capacity(MANY);
    // The vector has its pages before the count begins.
    counters.resize_with(MANY, || None);
    let before = resident();
    for counter in &mut counters {
        *counter = Some(EventFd::new(0).unwrap());
    }
    let bytes = (resident() - before) / MANY;
    println!("an eventfd: {bytes} bytes");
    assert!(bytes <= 128);

    let mut sets = Vec::with_capacity(MANY / 10);
    sets.resize_with(MANY / 10, || None);
    let before = resident();
    for set in &mut sets {
        *set = Some(Epoll::new().unwrap());
    }
    let bytes = (resident() - before) / sets.len();
    println!("an empty set: {bytes} bytes");
    assert!(bytes <= 512);
    drop(sets);

    let set = Epoll::new().unwrap();
    let add = |counter| set.add(counter, Event::new(Events::IN, 0)).unwrap();
    let before = resident();
    counters.iter().flatten().for_each(add);
    let bytes = (resident() - before) / MANY;
    println!("an item: {bytes} bytes");
    assert!(bytes <= 128);
    for counter in counters.iter().flatten() {
        set.delete(counter).unwrap();
    }
    let kept = resident().saturating_sub(before);
    println!("after {MANY} ADDs, then as many DELs: {kept} bytes");
    assert!(kept <= 1 << 20);
    for counter in counters.iter().flatten() {
        add(counter);
        set.delete(counter).unwrap();
    }
    let kept = resident().saturating_sub(before);
    println!("after {MANY} times ADD and DEL: {kept} bytes");
    assert!(kept <= 1 << 20);
}
