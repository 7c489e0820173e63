//! Timers against threads that go to sleep, against threads that leave, and against each other. A deadline that is
//! missed is a deadlock.

use std::time::Duration;

use loom::thread;
use upoll::Source as _;
use upoll::kernel_model::{Source as KernelFd, pass_time, set_on};
use upoll::{Clock, Epoll, EventFd, Events, Op, PollFd, Rule, Timer, Timers, poll, poll_now};

use super::sleeping::{FOREVER, LIMIT, wait};
use super::{EDGE, IN, Waiter, harvest, model, must_fail_without, set_of};

const SECOND: Duration = Duration::from_secs(1);
const ZERO: Duration = Duration::ZERO;

fn timer() -> Timer {
    Timers::on(Clock::Monotonic).unwrap().timer().unwrap()
}

/// Limits of sleeps end from now on.
fn arms(timer: &Timer) -> thread::JoinHandle<()> {
    let timer = timer.clone();
    thread::spawn(move || {
        timer.arm(SECOND, ZERO);
        pass_time();
    })
}

/// The virtual time passes while another thread arms a timer, or reads one that goes on.
#[test]
fn a_timer_that_is_armed_or_read_while_its_time_passes_fires() {
    for is_read in [false, true] {
        model(3, move || {
            let timers = Timers::new().unwrap();
            let timer = timers.timer().unwrap();
            if is_read {
                timer.arm(SECOND, SECOND);
                timers.advance(SECOND).unwrap();
            }
            let other = timer.clone();
            let changing = thread::spawn(move || match is_read {
                true => assert!(other.try_read().is_ok()),
                false => {
                    other.arm_at(SECOND, ZERO);
                }
            });
            timers.advance(3 * SECOND).unwrap();
            changing.join().unwrap();
            assert!(is_read || timer.try_read().is_ok());
            // None is left that is due.
            let due = timers.next_due();
            assert!(due.is_none_or(|due| due > 3 * SECOND));
        });
    }
}

fn arming_against_going_to_sleep() {
    model(3, || {
        let timer = timer();
        let set = set_of(&timer, IN);
        let arming = arms(&timer);
        assert_eq!(wait(&set, FOREVER), Ok(1));
        arming.join().unwrap();
        assert_eq!(timer.try_read(), Ok(1));
    });
}

#[test]
fn a_thread_that_goes_to_sleep_in_a_set_misses_no_timer() {
    arming_against_going_to_sleep();
}

#[test]
fn it_misses_one_that_does_not_tell_of_a_sooner_time() {
    must_fail_without(Rule::TellSooner, arming_against_going_to_sleep);
}

#[test]
fn a_thread_that_goes_to_sleep_in_the_kernel_misses_no_timer() {
    model(2, || {
        let timer = timer();
        let set = set_of(&timer, IN);
        let source = KernelFd::new();
        set.ctl(Op::Add, source.target(), IN).unwrap();
        let arming = arms(&timer);
        assert_eq!(wait(&set, FOREVER), Ok(1));
        arming.join().unwrap();
    });
}

/// Takes the sets that know the timer off the list of its clock, as nobody waits in them.
fn arm_unheard(timer: &Timer) {
    timer.arm(SECOND, ZERO);
    timer.disarm();
}

/// A set leaves the list of the clock's while a thread goes to sleep in it. Then the timer is armed once more.
#[test]
fn a_thread_that_goes_to_sleep_while_its_set_leaves_the_list_misses_no_timer() {
    model(3, || {
        let timer = timer();
        let set = set_of(&timer, IN);
        let armed = timer.clone();
        let arming = thread::spawn(move || {
            arm_unheard(&armed);
            armed.arm(SECOND, ZERO);
            pass_time();
        });
        assert_eq!(wait(&set, FOREVER), Ok(1));
        arming.join().unwrap();
    });
}

#[test]
fn a_thread_that_goes_to_sleep_in_a_set_that_has_left_the_list_misses_no_timer() {
    for is_above in [false, true] {
        model(3, move || {
            let timer = timer();
            let set = set_of(&timer, IN);
            let outer = Epoll::new().unwrap();
            if is_above {
                outer.add(&set, IN).unwrap();
            }
            arm_unheard(&timer);
            let arming = arms(&timer);
            let waiting = if is_above { &outer } else { &set };
            assert_eq!(wait(waiting, FOREVER), Ok(1));
            arming.join().unwrap();
        });
    }
}

#[test]
fn a_thread_that_goes_to_sleep_in_the_kernel_for_a_set_that_has_left_the_list_misses_no_timer() {
    model(2, || {
        let timer = timer();
        let set = set_of(&timer, IN);
        let source = KernelFd::new();
        set.ctl(Op::Add, source.target(), IN).unwrap();
        arm_unheard(&timer);
        let arming = arms(&timer);
        assert_eq!(wait(&set, FOREVER), Ok(1));
        arming.join().unwrap();
    });
}

/// A change takes the set off the list while that ends.
#[test]
fn a_set_that_closes_while_a_timer_is_armed_is_called_no_more() {
    model(3, || {
        let timer = timer();
        let set = set_of(&timer, IN);
        let arming = thread::spawn(move || timer.arm(SECOND, ZERO));
        drop(set);
        arming.join().unwrap();
    });
}

/// Two threads go to sleep while no timer is armed. One leaves.
#[test]
fn a_thread_that_leaves_a_set_does_not_take_the_set_off_the_list() {
    model(2, || {
        let timer = timer();
        let set = set_of(&timer, IN);
        let second = set.clone();
        let staying = thread::spawn(move || wait(&second, FOREVER));
        let arming = arms(&timer);
        assert!(wait(&set, LIMIT).is_ok());
        assert_eq!(staying.join().unwrap(), Ok(1));
        arming.join().unwrap();
    });
}

/// The wake of a thread that has to learn of a sooner time is taken by one that does not sleep.
#[test]
fn a_thread_that_sleeps_in_the_kernel_keeps_the_time_whoever_takes_its_wake() {
    model(2, || {
        let timer = timer();
        let set = set_of(&timer, IN);
        let source = KernelFd::new();
        set.ctl(Op::Add, source.target(), IN).unwrap();
        let arming = arms(&timer);
        let second = set.clone();
        let taking = thread::spawn(move || harvest(&second));
        assert_eq!(wait(&set, FOREVER), Ok(1));
        arming.join().unwrap();
        taking.join().unwrap();
    });
}

#[test]
fn a_thread_that_goes_to_sleep_in_poll_misses_no_timer() {
    model(3, || {
        let timer = timer();
        let arming = arms(&timer);
        let ready = poll(&mut [PollFd::new(&timer, Events::IN)], FOREVER);
        assert_eq!(ready, Ok(1));
        arming.join().unwrap();
    });
}

/// The next time moves away, then a later timer is armed, while a thread goes to sleep by the first.
#[test]
fn a_thread_that_keeps_an_earlier_time_learns_of_the_next_one() {
    model(2, || {
        let timers = Timers::on(Clock::Monotonic).unwrap();
        let [member, other] = [(); 2].map(|()| timers.timer().unwrap());
        let set = set_of(&member, IN);
        other.arm(SECOND, ZERO);
        let armed = member.clone();
        let arming = thread::spawn(move || {
            armed.arm(2 * SECOND, ZERO);
            other.disarm();
            pass_time();
        });
        assert_eq!(wait(&set, FOREVER), Ok(1));
        arming.join().unwrap();
    });
}

/// Two threads sleep in one set. An event wakes one, which leaves.
#[test]
fn a_thread_that_leaves_a_set_with_an_event_hands_the_time_on() {
    model(1, || {
        let timer = timer();
        timer.arm(SECOND, ZERO);
        let set = set_of(&timer, IN);
        let counter = EventFd::new(0).unwrap();
        set.add(&counter, EDGE).unwrap();
        let second = set.clone();
        let staying = thread::spawn(move || wait(&second, FOREVER));
        let writing = thread::spawn(move || {
            counter.try_write(1).unwrap();
            pass_time();
            counter
        });
        assert!(wait(&set, FOREVER).is_ok());
        assert!(staying.join().unwrap().is_ok());
        writing.join().unwrap();
    });
}

/// A thread whose own limit ends leaves while another one goes to sleep.
fn leaving_against_going_to_sleep() {
    model(2, || {
        let timer = timer();
        timer.arm(2 * SECOND, ZERO);
        let set = set_of(&timer, IN);
        let second = set.clone();
        let staying = thread::spawn(move || wait(&second, FOREVER));
        pass_time();
        assert!(wait(&set, LIMIT).is_ok());
        assert_eq!(staying.join().unwrap(), Ok(1));
    });
}

#[test]
fn a_thread_that_leaves_a_set_hands_the_time_on() {
    leaving_against_going_to_sleep();
}

#[test]
fn a_thread_that_goes_to_sleep_learns_of_the_first_timer_of_its_set() {
    model(3, || {
        let timer = timer();
        timer.arm(SECOND, ZERO);
        let set = Epoll::new().unwrap();
        let adder = set.clone();
        let adding = thread::spawn(move || {
            adder.add(&timer, IN).unwrap();
            pass_time();
            timer
        });
        assert_eq!(wait(&set, FOREVER), Ok(1));
        adding.join().unwrap();
    });
}

/// A timer comes into a set while that is added to another one.
#[test]
fn a_set_above_learns_of_a_timer_that_comes_with_it() {
    model(2, || {
        let timer = timer();
        timer.arm(SECOND, ZERO);
        let [inner, outer] = [(); 2].map(|()| Epoll::new().unwrap());
        let below = inner.clone();
        let adding = thread::spawn(move || {
            below.add(&timer, IN).unwrap();
            timer
        });
        outer.add(&inner, IN).unwrap();
        let _timer = adding.join().unwrap();
        pass_time();
        assert_eq!(wait(&outer, FOREVER), Ok(1));
    });
}

#[test]
fn an_expiration_that_two_threads_fire_counts_once() {
    model(3, || {
        let timers = Timers::new().unwrap();
        let timer = timers.timer().unwrap();
        let set = set_of(&timer, EDGE);
        let waiter = Waiter::at(timer.as_file_ref(), Events::IN);
        timer.arm(SECOND, ZERO);
        let second = timers.clone();
        let advancing = thread::spawn(move || second.advance(SECOND).unwrap());
        timers.advance(SECOND).unwrap();
        // The other thread may still be about to wake the waiters.
        advancing.join().unwrap();
        assert_eq!(waiter.times_told(), 1);
        assert_eq!(harvest(&set), 1);
        assert_eq!(harvest(&set), 0);
        assert_eq!(timer.try_read(), Ok(1));
    });
}

/// A thread reads the clock, and another one fires the timer at a later time, before the first one reads the timer.
#[test]
fn an_expiration_that_another_thread_fires_later_counts_once() {
    model(3, || {
        let timer = timer();
        timer.arm(SECOND, SECOND);
        let firing = {
            let timer = timer.clone();
            thread::spawn(move || {
                set_on(SECOND);
                poll_now(&mut [PollFd::new(&timer, Events::IN)]).unwrap();
            })
        };
        let count = timer.try_read().unwrap_or(0);
        firing.join().unwrap();
        assert_eq!(count + timer.try_read().unwrap_or(0), 1);
    });
}

/// Either the read counts the expiration, or the timer is ready afterwards.
#[test]
fn a_read_against_an_expiration_loses_none() {
    model(3, || {
        let timers = Timers::new().unwrap();
        let timer = timers.timer().unwrap();
        timer.arm(SECOND, SECOND);
        timers.advance(SECOND).unwrap();
        let second = timers.clone();
        let advancing = thread::spawn(move || second.advance(2 * SECOND).unwrap());
        let first = timer.try_read().unwrap();
        advancing.join().unwrap();
        timers.fire();
        assert_eq!(first + timer.try_read().unwrap_or(0), 2);
    });
}
