//! The generation numbers of processes in a line of forks.

use std::sync::Arc;

use loom::thread;
use upoll::sequenced::{AtomicU32, Ordering};
use upoll::{Rule, generation};

use super::{model, must_fail_without};

/// The state from which a process finds its generation.
struct Process {
    count: AtomicU32,
    /// In memory that is zero after a fork.
    mark: AtomicU32,
}

impl Process {
    fn generation(&self) -> u32 {
        generation(&self.count, &self.mark)
    }

    fn fork(&self) -> Process {
        Process {
            count: AtomicU32::new(self.count.load(Ordering::Relaxed)),
            mark: AtomicU32::new(0),
        }
    }
}

/// Two threads of a child ask for its generation for the first time; one of them forks.
fn asking_against_forking() {
    model(3, || {
        let parent = Process {
            count: AtomicU32::new(0),
            mark: AtomicU32::new(1),
        };
        let child = Arc::new(parent.fork());
        let other = child.clone();
        let asking = thread::spawn(move || other.generation());
        // loom runs this thread first otherwise, and misses the schedules in which the other one is
        // halfway.
        thread::yield_now();
        let known = child.generation();
        let grandchild = child.fork();
        assert_ne!(known, parent.generation());
        assert_ne!(grandchild.generation(), parent.generation());
        assert_ne!(
            grandchild.generation(),
            known,
            "it takes for its own what is not"
        );
        assert_eq!(asking.join().unwrap(), known);
    });
}

#[test]
fn no_process_has_the_number_of_one_that_it_descends_from() {
    asking_against_forking();
}

#[test]
fn a_process_that_is_counted_after_its_mark_may_have_a_child_of_the_same_number() {
    must_fail_without(Rule::CountThenMark, asking_against_forking);
}
