//! Timers and their times: the timers of one `Timers`, in the order of their times.
//!
//! # Time
//! Times are nanoseconds of the schedule's clock, at most `LATEST` as in the kernel. A schedule without a
//! clock has the time that its owner has told it last.
//!
//! # The named pair: the next time, and threads that go to sleep
//! A change publishes `next`, then wakes `sooner` if that time has come nearer. A thread registers with
//! `sooner`, itself or through the set that it waits in, then reads `next`. So it sees the new time, or is
//! woken to look again.
//!
//! # A timer that fires
//! It leaves the order, as the kernel's does (`timerfd_tmrproc`). A periodic one returns to the order, with
//! the periods that have passed meanwhile added to its count, when it is read or asked.

use alloc::vec::Vec;
use core::sync::atomic::AtomicUsize as StaticCount;
use core::time::Duration;

use crate::clock::Clock;
use crate::errno::Errno;
use crate::events::Events;
use crate::memory::SharedBox;
use crate::sync::{AtomicU64, Mutex, MutexGuard, Ordering, Rule, broken};
use crate::wait::{Scope, WaitQueue};

/// The latest time of a timer (`KTIME_MAX`). It never comes, also if a virtual clock shows it.
const LATEST: u64 = i64::MAX.cast_unsigned();

/// Later than every time.
pub const NEVER: u64 = u64::MAX;

/// Returns the nanoseconds of `time`, or `LATEST` if there are more.
pub fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).map_or(LATEST, |time| time.min(LATEST))
}

/// The number of schedules of the process that have a clock. While there is none, nobody asks for any.
#[cfg(not(upoll_loom))]
static WITH_CLOCK: StaticCount = StaticCount::new(0);

#[cfg(upoll_loom)]
loom::lazy_static! {
    /// Each run of a model has its own.
    static ref WITH_CLOCK: StaticCount = StaticCount::new(0);
}

/// Returns whether there is a schedule with a clock.
#[cfg(any(feature = "std", upoll_loom))]
pub fn any_has_clock() -> bool {
    WITH_CLOCK.load(Ordering::Relaxed) != 0
}

/// A clock, and how to read it.
pub(crate) type Reading = (Clock, fn(Clock) -> Duration);

/// The timers of one clock.
pub struct Schedule {
    clock: Option<Reading>,
    /// The time at which the next timer fires. Written under `order`'s lock.
    next: AtomicU64,
    /// The threads that sleep until `next`, and the sets in which such threads wait.
    pub sooner: WaitQueue,
    /// The lock nests inside a set's lock, and outside none.
    order: Mutex<Order>,
}

impl Drop for Schedule {
    fn drop(&mut self) {
        if self.clock.is_some() {
            WITH_CLOCK.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

/// The part of a timer that changes when it fires.
pub struct Expirations {
    /// The number of expirations since the timer was read. Written under the lock of the order.
    count: AtomicU64,
    pub queue: WaitQueue,
}

impl Expirations {
    /// Returns whether there is anything to read.
    pub fn is_any(&self) -> bool {
        self.count.load(Ordering::SeqCst) != 0
    }
}

struct Order {
    /// The time, if there is no clock.
    now: u64,
    /// The number of times that a timer was put into the order.
    entered: u64,
    /// All timers, by their numbers. A place is free if it has no expirations.
    timers: Vec<Timer>,
    free: Vec<u32>,
    /// The numbers of those that will fire: a heap with the next one first.
    heap: Vec<u32>,
}

#[derive(Default)]
struct Timer {
    expirations: Option<SharedBox<Expirations>>,
    /// The time at which it fires, or has fired last.
    due: u64,
    /// Timers with the same time fire in the order in which they were armed.
    entered: u64,
    /// The time between two expirations; zero if there is only one.
    period: u64,
    /// It has fired and was not asked about since.
    has_fired: bool,
    /// Its place in the heap, if it is there.
    place: Option<usize>,
}

impl Timer {
    /// Moves `due` beyond `now` in whole periods, at least by one: the timer has fired. Returns how many
    /// (`hrtimer_forward`). Another thread may have fired it at a later time than the caller's `now`.
    fn forward(&mut self, now: u64) -> u64 {
        let periods = now.saturating_sub(self.due) / self.period + 1;
        self.due = self
            .due
            .saturating_add(self.period.saturating_mul(periods))
            .min(LATEST);
        periods
    }

    /// Returns what `timerfd_gettime` returns: the time until it fires, and its period.
    fn remaining(&self, now: u64) -> (u64, u64) {
        (self.due.saturating_sub(now), self.period)
    }
}

impl Order {
    fn comes_before(&self, one: u32, other: u32) -> bool {
        let key = |number: u32| {
            let timer = &self.timers[number as usize];
            (timer.due, timer.entered)
        };
        key(one) < key(other)
    }

    fn set(&mut self, place: usize, number: u32) {
        self.heap[place] = number;
        self.timers[number as usize].place = Some(place);
    }

    fn sift_up(&mut self, mut place: usize) {
        let number = self.heap[place];
        while place > 0 {
            let above = (place - 1) / 2;
            if !self.comes_before(number, self.heap[above]) {
                break;
            }
            self.set(place, self.heap[above]);
            place = above;
        }
        self.set(place, number);
    }

    fn sift_down(&mut self, mut place: usize) {
        let number = self.heap[place];
        loop {
            let mut below = 2 * place + 1;
            if below >= self.heap.len() {
                break;
            }
            if below + 1 < self.heap.len()
                && self.comes_before(self.heap[below + 1], self.heap[below])
            {
                below += 1;
            }
            if !self.comes_before(self.heap[below], number) {
                break;
            }
            self.set(place, self.heap[below]);
            place = below;
        }
        self.set(place, number);
    }

    /// Puts a timer into the order. There is room: see [`Schedule::add`].
    fn enter(&mut self, number: u32) {
        self.entered += 1;
        let timer = &mut self.timers[number as usize];
        timer.entered = self.entered;
        self.heap.push(number);
        self.sift_up(self.heap.len() - 1);
    }

    /// Takes a timer out of the order, if it is there.
    fn leave(&mut self, number: u32) {
        let Some(place) = self.timers[number as usize].place.take() else {
            return;
        };
        self.heap.swap_remove(place);
        if let Some(&moved) = self.heap.get(place) {
            self.sift_up(place);
            let place = self.timers[moved as usize].place.unwrap_or(place);
            self.sift_down(place);
        }
    }

    /// A periodic timer that has fired goes on. Returns how many expirations came after the first.
    fn go_on(&mut self, number: u32, now: u64) -> u64 {
        let timer = &mut self.timers[number as usize];
        if !timer.has_fired || timer.period == 0 {
            return 0;
        }
        timer.has_fired = false;
        let periods = timer.forward(now);
        self.enter(number);
        periods.saturating_sub(1)
    }

    fn next(&self) -> u64 {
        self.heap
            .first()
            .map(|&first| self.timers[first as usize].due)
            .filter(|&due| due < LATEST)
            .unwrap_or(NEVER)
    }
}

impl Schedule {
    pub fn new(clock: Option<Reading>) -> Self {
        if clock.is_some() {
            WITH_CLOCK.fetch_add(1, Ordering::Relaxed);
        }
        Schedule {
            clock,
            next: AtomicU64::new(NEVER),
            sooner: WaitQueue::new(),
            order: Mutex::new(Order {
                now: 0,
                entered: 0,
                timers: Vec::new(),
                free: Vec::new(),
                heap: Vec::new(),
            }),
        }
    }

    /// The clock that drives it, if there is one.
    pub fn clock(&self) -> Option<Clock> {
        self.clock.map(|(clock, _)| clock)
    }

    /// The time at which the next timer fires, or [`NEVER`].
    #[inline]
    pub fn next(&self) -> u64 {
        self.next.load(Ordering::SeqCst)
    }

    /// The time of its clock.
    pub fn now(&self) -> u64 {
        match self.clock {
            Some((clock, read)) => nanoseconds(read(clock)),
            None => self.order.lock().now,
        }
    }

    /// Takes the lock. Returns the time, too: `now`, or that of a virtual clock, which is set with the lock held. A change
    /// by an older time than the clock's would leave a timer that is due, after others have fired what was.
    fn lock_at(&self, now: u64) -> (MutexGuard<'_, Order>, u64) {
        let order = self.order.lock();
        let now = match self.clock {
            Some(_) => now,
            None => order.now,
        };
        (order, now)
    }

    /// Fires what is due, and takes the lock. Returns the time, too: see [`lock_at`](Self::lock_at).
    fn fire_and_lock(&self) -> (MutexGuard<'_, Order>, u64) {
        let now = self.now();
        self.fire_until(now);
        self.lock_at(now)
    }

    /// Publishes the next time and releases the lock. Threads that sleep for longer look again.
    fn publish(&self, order: MutexGuard<'_, Order>) {
        let next = order.next();
        let before = self.next.load(Ordering::Relaxed);
        if next != before {
            self.next.store(next, Ordering::SeqCst);
        }
        drop(order);
        if next < before && !broken(Rule::TellSooner) {
            self.sooner.wake(Events::IN);
        }
    }

    /// Makes a timer that is not armed.
    ///
    /// # Errors
    /// `ENOMEM`: there is no memory for it.
    pub fn add(&self) -> Result<(u32, SharedBox<Expirations>), Errno> {
        let expirations = SharedBox::new(Expirations {
            count: AtomicU64::new(0),
            queue: WaitQueue::new(),
        })?;
        let mut order = self.order.lock();
        let order = &mut *order;
        let number = match order.free.pop() {
            Some(number) => number,
            None => {
                // The heap and the free places have room for all timers.
                let count = order.timers.len();
                let number = u32::try_from(count).map_err(|_| Errno::NOMEM)?;
                let missing = |len: usize| count + 1 - len;
                let more = missing(order.heap.len());
                order.heap.try_reserve(more).map_err(|_| Errno::NOMEM)?;
                let more = missing(order.free.len());
                order.free.try_reserve(more).map_err(|_| Errno::NOMEM)?;
                order.timers.try_reserve(1).map_err(|_| Errno::NOMEM)?;
                order.timers.push(Timer::default());
                number
            }
        };
        order.timers[number as usize].expirations = Some(expirations.clone());
        Ok((number, expirations))
    }

    /// Ends a timer. Its number may be another timer's from now on.
    pub fn remove(&self, number: u32) {
        let mut order = self.order.lock();
        order.leave(number);
        let ended = core::mem::take(&mut order.timers[number as usize]);
        order.free.push(number);
        self.publish(order);
        drop(ended);
    }

    /// Arms a timer, or disarms it if `value` is zero (`timerfd_settime`). Returns the time that was left, and
    /// the former period.
    pub fn set(&self, number: u32, value: u64, period: u64, is_absolute: bool) -> (u64, u64) {
        // Callbacks of timers that are due run at the end: one that panics does not keep the timer from being armed.
        let _scope = Scope::enter();
        let (mut order, now) = self.fire_and_lock();
        order.leave(number);
        let timer = &mut order.timers[number as usize];
        if timer.has_fired && timer.period != 0 {
            timer.forward(now);
        }
        let before = timer.remaining(now);
        timer.has_fired = false;
        timer.period = period;
        if let Some(expirations) = &timer.expirations {
            expirations.count.store(0, Ordering::SeqCst);
        }
        timer.due = match value {
            0 => 0,
            _ if is_absolute => value,
            _ => now.saturating_add(value).min(LATEST),
        };
        if value != 0 {
            order.enter(number);
        }
        self.publish(order);
        self.fire_until(now);
        before
    }

    /// Returns the time until a timer fires, and its period (`timerfd_gettime`).
    pub fn remaining(&self, number: u32) -> (u64, u64) {
        let (mut order, now) = self.fire_and_lock();
        let more = order.go_on(number, now);
        let timer = &order.timers[number as usize];
        if more != 0
            && let Some(expirations) = &timer.expirations
        {
            expirations.count.fetch_add(more, Ordering::SeqCst);
        }
        let remaining = timer.remaining(now);
        self.publish(order);
        remaining
    }

    /// Takes the expirations of a timer.
    ///
    /// # Errors
    /// `EAGAIN`: there are none.
    pub fn take(&self, number: u32) -> Result<u64, Errno> {
        let (mut order, now) = self.fire_and_lock();
        let timer = &order.timers[number as usize];
        let count = match &timer.expirations {
            Some(expirations) => expirations.count.swap(0, Ordering::SeqCst),
            None => 0,
        };
        if count == 0 {
            return Err(Errno::AGAIN);
        }
        let more = order.go_on(number, now);
        order.timers[number as usize].has_fired = false;
        self.publish(order);
        Ok(count.saturating_add(more))
    }

    /// Sets the virtual clock. A time before the last one changes nothing.
    pub fn pass_until(&self, now: u64) {
        let mut order = self.order.lock();
        order.now = order.now.max(now);
    }

    /// Fires all timers that are due, one after the other.
    #[inline]
    pub fn fire(&self) {
        if self.next() != NEVER {
            self.fire_until(self.now());
        }
    }

    fn fire_until(&self, now: u64) {
        // Callbacks run when all have fired: one that panics keeps none from that.
        let mut scope = None;
        while let Some(fired) = self.take_due(now) {
            scope.get_or_insert_with(Scope::enter);
            fired.queue.wake(Events::IN);
        }
    }

    /// Counts the expiration of the next timer that is due at `now`. Its waiters are to be woken.
    fn take_due(&self, now: u64) -> Option<SharedBox<Expirations>> {
        if self.next() > now {
            return None;
        }
        let mut order = self.order.lock();
        // Another thread may have fired it meanwhile.
        if order.next() > now {
            return None;
        }
        let number = *order.heap.first()?;
        order.leave(number);
        let timer = &mut order.timers[number as usize];
        timer.has_fired = true;
        let fired = timer.expirations.clone();
        if let Some(fired) = &fired {
            fired.count.fetch_add(1, Ordering::SeqCst);
        }
        self.publish(order);
        fired
    }
}
