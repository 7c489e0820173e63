//! Models of the question whether any fd is user-level.

use std::sync::Arc;

use loom::sync::atomic::Ordering;
use loom::thread;

use crate::counts;
use crate::harness::model;
use crate::sync;

/// A table of two fds, of which the first one is searched first.
type Table = Arc<[sync::AtomicUsize; 2]>;

fn new_table(first: usize, second: usize) -> Table {
    Arc::new([first, second].map(sync::AtomicUsize::new))
}

fn has(table: &Table) -> bool {
    table.iter().any(|fd| fd.load(Ordering::SeqCst) != 0)
}

/// Copies the second fd to the first one, and closes the second one.
fn move_down(table: &Table) {
    counts::while_adding(|| table[0].store(1, Ordering::SeqCst));
    assert!(counts::has_any(), "the thread's own fd is not there");
    table[1].store(0, Ordering::SeqCst);
}

/// A thread adds an fd while two others look whether there are any.
#[test]
fn an_fd_that_is_added_is_seen_or_counted() {
    model(2, || {
        let table = new_table(0, 0);
        let threads = [(); 2].map(|()| {
            let table = Arc::clone(&table);
            thread::spawn(move || counts::is_none_left(|| has(&table)))
        });
        counts::while_adding(|| table[0].store(1, Ordering::SeqCst));
        assert!(counts::has_any());
        for thread in threads {
            thread.join().unwrap();
        }
        assert!(counts::has_any() && !counts::is_none_left(|| has(&table)));
    });
}

/// An fd is copied and closed while another thread looks whether there are any: one of the two is there.
#[test]
fn an_fd_that_is_copied_and_closed_leaves_one() {
    model(4, || {
        let table = new_table(0, 0);
        counts::while_adding(|| table[1].store(1, Ordering::SeqCst));
        let moving = {
            let table = Arc::clone(&table);
            thread::spawn(move || move_down(&table))
        };
        assert!(!counts::is_none_left(|| has(&table)));
        moving.join().unwrap();
        assert!(counts::has_any());
    });
}

/// The last fd is closed: nobody looks for one any more, and a signal handler looks for the next one as soon as
/// the table has it.
#[test]
fn without_an_fd_there_is_none_until_the_next_one() {
    model(1, || {
        let table = new_table(0, 0);
        assert!(!counts::has_any());
        counts::while_adding(|| table[0].store(1, Ordering::SeqCst));
        assert!(!counts::is_none_left(|| has(&table)) && counts::has_any());
        table[0].store(0, Ordering::SeqCst);
        assert!(counts::is_none_left(|| has(&table)) && !counts::has_any());
        counts::while_adding(|| {
            table[0].store(1, Ordering::SeqCst);
            assert!(counts::has_any());
        });
    });
}
