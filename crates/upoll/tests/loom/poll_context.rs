//! The registrations of a poll context, against writes, closes and drops, and threads that sleep
//! with it.

use std::sync::Arc;

use loom::thread;
use upoll::kernel_model::Source as KernelSource;
use upoll::{
    Descriptor, Errno, EventFd, Events, FdSet, File, PollContext, PollFd, Rule, Source, Timeout,
    pipe,
};

use super::sets::Flag;
use super::{model, must_fail_without, writes};

fn poll_kept(context: &mut PollContext, counter: &EventFd) -> usize {
    let mut fds = [PollFd::new(counter, Events::IN)];
    context.poll(&mut fds, Timeout::NOW).unwrap()
}

/// A poll context registers a counter while a writer writes. The next call finds the counter ready.
fn keeping_against_writing() {
    model(4, || {
        let counter = EventFd::new(0).unwrap();
        let thread = writes(&counter, 1);
        let mut context = PollContext::new();
        poll_kept(&mut context, &counter);
        thread.join().unwrap();
        assert_eq!(poll_kept(&mut context, &counter), 1);
    });
}

#[test]
fn an_entry_that_a_context_registers_misses_no_wake() {
    keeping_against_writing();
}

#[test]
fn an_entry_that_is_not_polled_after_registering_misses_a_wake() {
    must_fail_without(Rule::LookAfterRegistering, keeping_against_writing);
}

/// Wakeups leave marks with a poll context while it polls. An entry that is ready at the end is
/// never taken for idle, whatever was read meanwhile.
fn marking_against_looking() {
    model(4, || {
        let counter = EventFd::new(0).unwrap();
        let mut context = PollContext::new();
        assert_eq!(poll_kept(&mut context, &counter), 0);
        // The entry is marked, and idle when it is polled.
        counter.try_write(1).unwrap();
        counter.try_read().unwrap();
        let thread = writes(&counter, 1);
        poll_kept(&mut context, &counter);
        thread.join().unwrap();
        assert_eq!(poll_kept(&mut context, &counter), 1);
    });
}

#[test]
fn a_mark_is_never_lost_between_polls_and_wakes() {
    marking_against_looking();
}

#[test]
fn marks_that_are_cleared_after_the_poll_are_lost() {
    must_fail_without(Rule::TakeMarksThenLook, marking_against_looking);
}

#[test]
fn a_context_selects() {
    model(1, || {
        let counters = [0, 1].map(|count| EventFd::new(count).unwrap());
        let mut context = PollContext::new();
        for _ in 0..2 {
            let mut read = FdSet::from_iter([0, 1]);
            let resolve = |fd| Some(counters.get(usize::try_from(fd).ok()?)?.target());
            let limit = &mut { Timeout::NOW };
            let ready = context.select(2, Some(&mut read), None, None, limit, resolve);
            assert_eq!((ready, read), (Ok(1), FdSet::from_iter([1])));
        }
        let mut read = FdSet::from_iter([2]);
        let resolve = |_| None;
        let limit = &mut { Timeout::NOW };
        let ready = context.select(3, Some(&mut read), None, None, limit, resolve);
        assert_eq!(ready, Err(Errno::BADF));
    });
}

/// A context is dropped while a wakeup walks the queue.
#[test]
fn a_context_may_go_while_a_wake_comes() {
    model(4, || {
        let counter = EventFd::new(0).unwrap();
        let mut context = PollContext::new();
        assert_eq!(poll_kept(&mut context, &counter), 0);
        let thread = writes(&counter, 1);
        drop(context);
        thread.join().unwrap();
        assert!(counter.as_file_ref().is_ready(Events::IN));
    });
}

/// A poll context registers a reader while the other end closes. The next call finds that it has
/// hung up.
fn keeping_against_closing() {
    model(4, || {
        let (reader, writer) = pipe().unwrap();
        let thread = thread::spawn(move || drop(writer));
        let mut context = PollContext::new();
        let mut fds = [PollFd::new(&reader, Events::empty())];
        context.poll(&mut fds, Timeout::NOW).unwrap();
        thread.join().unwrap();
        assert_eq!(context.poll(&mut fds, Timeout::NOW), Ok(1));
        assert_eq!(fds[0].revents(), Events::HUP);
    });
}

#[test]
fn an_entry_that_a_context_registers_misses_no_close() {
    keeping_against_closing();
}

#[test]
fn an_entry_that_is_not_polled_after_registering_misses_a_close() {
    must_fail_without(Rule::LookAfterRegistering, keeping_against_closing);
}

/// The file of a kept entry closes, which wakes the entry. Meanwhile the next call, with another
/// file in its list, drops the entry and uses its slot again.
#[test]
fn a_context_may_use_the_slot_of_a_file_again_while_it_closes() {
    model(3, || {
        let closing = EventFd::new(0).unwrap();
        let other = EventFd::new(0).unwrap();
        let mut context = PollContext::new();
        assert_eq!(poll_kept(&mut context, &closing), 0);
        let thread = thread::spawn(move || drop(closing));
        assert_eq!(poll_kept(&mut context, &other), 0);
        other.try_write(1).unwrap();
        assert_eq!(poll_kept(&mut context, &other), 1);
        thread.join().unwrap();
        assert_eq!(poll_kept(&mut context, &other), 1);
    });
}

/// Waits with `context` until `file` is readable or has hung up.
fn wait_kept(context: &mut PollContext, file: &impl Source) {
    let mut fds = [PollFd::new(file, Events::IN)];
    assert_eq!(context.poll(&mut fds, Timeout::NEVER), Ok(1));
}

/// The wakeup comes before or while a thread sleeps for an entry that is new, or was kept.
fn sleeping_against_writing(was_kept: bool) {
    model(3, move || {
        let flag = Flag::new();
        let mut context = PollContext::new();
        if was_kept {
            let mut fds = [PollFd::new(&flag, Events::IN)];
            assert_eq!(context.poll(&mut fds, Timeout::NOW), Ok(0));
        }
        let changed = flag.clone();
        let raising = thread::spawn(move || changed.set(true));
        wait_kept(&mut context, &flag);
        raising.join().unwrap();
    });
}

#[test]
fn a_thread_that_goes_to_sleep_with_a_context_misses_no_change() {
    sleeping_against_writing(false);
}

#[test]
fn a_thread_that_goes_to_sleep_with_a_context_misses_no_change_of_what_was_kept() {
    sleeping_against_writing(true);
}

/// The same after a spurious wakeup, when the thread polls again.
#[test]
fn a_thread_with_a_context_that_is_woken_for_nothing_misses_no_change() {
    model(3, || {
        let flag = Flag::new();
        let mut context = PollContext::new();
        let changed = flag.clone();
        let raising = thread::spawn(move || {
            changed.queue.wake(Events::IN);
            changed.set(true);
        });
        wait_kept(&mut context, &flag);
        raising.join().unwrap();
    });
}

#[test]
fn a_thread_that_goes_to_sleep_with_a_context_misses_no_close() {
    model(3, || {
        let (reader, writer) = pipe().unwrap();
        let mut context = PollContext::new();
        let closing = thread::spawn(move || drop(writer));
        wait_kept(&mut context, &reader);
        closing.join().unwrap();
    });
}

/// A thread changes its list and sleeps. Meanwhile a wakeup comes for an old entry whose slot the
/// new one takes.
#[test]
fn a_thread_that_sleeps_with_a_changed_list_misses_no_change() {
    model(2, || {
        let (before, after) = (Flag::new(), Flag::new());
        let mut context = PollContext::new();
        let mut fds = [PollFd::new(&before, Events::IN)];
        assert_eq!(context.poll(&mut fds, Timeout::NOW), Ok(0));
        let changed = [before.clone(), after.clone()];
        let raising = thread::spawn(move || {
            for flag in &changed {
                flag.set(true);
            }
        });
        wait_kept(&mut context, &after);
        raising.join().unwrap();
    });
}

/// The file of a kept entry closes while the context's thread goes to sleep for another one.
#[test]
fn a_thread_that_sleeps_with_a_changed_list_may_have_the_old_one_closed() {
    model(2, || {
        let (before, after) = (EventFd::new(0).unwrap(), Flag::new());
        let mut context = PollContext::new();
        assert_eq!(poll_kept(&mut context, &before), 0);
        let changed = after.clone();
        let raising = thread::spawn(move || {
            drop(before);
            changed.set(true);
        });
        wait_kept(&mut context, &after);
        raising.join().unwrap();
    });
}

#[test]
fn a_thread_that_goes_to_sleep_in_select_with_a_context_misses_no_change() {
    model(3, || {
        let flag = Flag::new();
        let mut context = PollContext::new();
        let changed = flag.clone();
        let raising = thread::spawn(move || changed.set(true));
        let mut read = FdSet::from_iter([0]);
        let limit = &mut { Timeout::NEVER };
        let resolve = |_| Some(flag.target());
        let found = context.select(1, Some(&mut read), None, None, limit, resolve);
        assert_eq!(found, Ok(1));
        raising.join().unwrap();
    });
}

fn list_of(flags: &[File<Flag>; 2]) -> [PollFd<'_>; 2] {
    flags.each_ref().map(|flag| PollFd::new(flag, Events::IN))
}

/// A thread has slept with a context and passes it to another thread, which sleeps with it, while
/// wakeups come for the entries of both.
#[test]
fn a_thread_that_sleeps_with_the_context_of_another_one_misses_no_change() {
    model(2, || {
        let flags = [Flag::new(), Flag::new()];
        let mut context = PollContext::new();
        let changed = flags.clone();
        let raising = thread::spawn(move || {
            for flag in &changed {
                flag.set(true);
            }
        });
        assert!(context.poll(&mut list_of(&flags), Timeout::NEVER).unwrap() > 0);
        let second = flags.clone();
        let using = thread::spawn(move || {
            wait_kept(&mut context, &second[1]);
            context
        });
        // Wakeups for the first thread's list now go to the second thread, or to none.
        flags[0].queue.wake(Events::IN);
        let mut context = using.join().unwrap();
        raising.join().unwrap();
        assert_eq!(context.poll(&mut list_of(&flags), Timeout::NOW), Ok(2));
    });
}

/// The same with a kept entry. Its wakeup comes between the two threads, and the first thread ends.
#[test]
fn a_wake_that_comes_while_a_context_moves_is_found_by_the_next_thread() {
    model(3, || {
        let flag = Flag::new();
        let mut context = PollContext::new();
        let first = flag.clone();
        let using = thread::spawn(move || {
            let mut fds = [PollFd::new(&first, Events::IN)];
            context.poll(&mut fds, Timeout::NOW).unwrap();
            context
        });
        let changed = flag.clone();
        let raising = thread::spawn(move || changed.set(true));
        let mut context = using.join().unwrap();
        wait_kept(&mut context, &flag);
        raising.join().unwrap();
    });
}

/// A context with a kernel fd in its kernel set goes to another thread, which sleeps with it, while the fd becomes
/// readable.
#[test]
fn a_context_with_a_kernel_fd_moves_while_that_becomes_readable() {
    model(2, || {
        let source = Arc::new(KernelSource::new());
        let first = source.clone();
        let using = thread::spawn(move || {
            let mut context = PollContext::new();
            let first = Descriptor::new(&*first);
            let mut fds = [PollFd::new(&first, Events::IN)];
            context.poll(&mut fds, Timeout::NOW).unwrap();
            context
        });
        let changed = source.clone();
        let raising = thread::spawn(move || changed.set_readable(true));
        let mut context = using.join().unwrap();
        wait_kept(&mut context, &Descriptor::new(&*source));
        raising.join().unwrap();
    });
}

/// The same with a counter beside the kernel fd, which is written while the context moves: the second thread sleeps
/// in the kernel.
#[test]
fn a_wake_that_comes_while_a_context_with_a_kernel_fd_moves_is_found() {
    model(2, || {
        let source = Arc::new(KernelSource::new());
        let counter = EventFd::new(0).unwrap();
        let (first, first_counter) = (source.clone(), counter.clone());
        let using = thread::spawn(move || {
            let mut context = PollContext::new();
            poll_both(&mut context, &first_counter, &first, Timeout::NOW);
            context
        });
        let writing = writes(&counter, 1);
        let mut context = using.join().unwrap();
        assert_eq!(
            poll_both(&mut context, &counter, &source, Timeout::NEVER),
            1
        );
        writing.join().unwrap();
    });
}

fn poll_both(
    context: &mut PollContext,
    counter: &EventFd,
    source: &KernelSource,
    limit: Timeout,
) -> usize {
    let source = Descriptor::new(source);
    let mut fds = [
        PollFd::new(counter, Events::IN),
        PollFd::new(&source, Events::IN),
    ];
    context.poll(&mut fds, limit).unwrap()
}
