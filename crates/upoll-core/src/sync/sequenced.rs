//! Atomics for models: loom's, and the one total order of `SeqCst` operations, which loom leaves out.
//!
//! loom lets a `SeqCst` load return a value from before the last `SeqCst` store. So a correct
//! program fails in it, unless fences are put where the program has none. With such fences a model
//! cannot show whether the orderings beside them are needed. Here loom's atomic holds the number of
//! a store, and the values are kept beside it. A load that found a store older than the standard
//! allows is made again, as an operation that reads the newest one. So each of these orders a store
//! before a load, and nothing weaker does:
//!
//! | store | load |
//! |---|---|
//! | `SeqCst` | `SeqCst` |
//! | `SeqCst` | any, after a `SeqCst` fence of the loading thread that comes after the store |
//! | any, before a `SeqCst` fence of the storing thread | `SeqCst`, after that fence |
//! | any, before such a fence | any, after such a fence (loom knows this one) |
//!
//! [`barrier`] is the kernel's `membarrier(2)`, which makes every thread run such a fence.
//!
//! This file depends on loom alone: the models of other crates include it.

#![allow(missing_docs, reason = "the interface is that of `core::sync::atomic`")]

use std::cell::{Cell, RefCell};
use std::sync::atomic as std_atomic;
use std::sync::{Arc, Mutex, Weak};

use loom::sync::atomic as plain;
pub use loom::sync::atomic::Ordering;

/// Counts stores and fences, in the order in which loom runs them. Only the order matters, so it
/// goes on from one run of a model to the next.
static NOW: std_atomic::AtomicU64 = std_atomic::AtomicU64::new(1);

fn tick() -> u64 {
    NOW.fetch_add(1, Ordering::Relaxed)
}

loom::thread_local! {
    /// The time of the last `SeqCst` fence of this thread; 0 if it has run none.
    static FENCED: Cell<u64> = Cell::new(0);
    /// The stores of this thread since then without `SeqCst`.
    static UNFENCED: RefCell<Vec<Unfenced>> = RefCell::new(Vec::new());
}

loom::lazy_static! {
    /// The atomics of this run of the model.
    static ref ATOMICS: Mutex<Vec<Weak<Mutex<History>>>> = Mutex::new(Vec::new());
    /// Written by each `SeqCst` fence. loom runs operations on one atomic in every order, but it
    /// takes fences for operations on none. Without this atomic, loom would run a thread on to its
    /// next fence before another thread's load.
    static ref FENCES: plain::AtomicUsize = plain::AtomicUsize::new(0);
}

std::thread_local! {
    /// The time of the last [`barrier`], of all runs. loom runs all threads of a model on one of the
    /// system's.
    static ALL_FENCED: Cell<u64> = const { Cell::new(0) };
}

/// A store that no fence has followed so far.
struct Unfenced {
    history: Arc<Mutex<History>>,
    store: usize,
}

/// A store to an atomic, by its number.
#[derive(Clone, Copy, Default)]
struct Store {
    /// The time from which on `SeqCst` loads see it or a newer one.
    sequenced: Option<u64>,
    /// Its place in the order of the stores that loom has run. A thread may get its number before
    /// another one, and store after it.
    place: usize,
}

/// The stores to an atomic, by their numbers.
struct History(Vec<Store>);

impl History {
    /// Returns whether a load that must see all that was sequenced until `bound` may see `store`.
    fn allows(&self, store: usize, bound: u64) -> bool {
        let place = self.0[store].place;
        !self
            .0
            .iter()
            .any(|newer| newer.place > place && newer.sequenced.is_some_and(|since| since <= bound))
    }

    /// Returns whether a load may see only the store that loom has run last.
    fn allows_only_last(&self, bound: u64) -> bool {
        let last = self.0.iter().max_by_key(|store| store.place);
        last.is_some_and(|last| {
            last.place > 0 && last.sequenced.is_some_and(|since| since <= bound)
        })
    }

    /// Records that loom has just run `store`.
    fn ran(&mut self, store: usize, sequenced: Option<u64>) {
        let last = self.0.iter().map(|store| store.place).max();
        self.0[store] = Store {
            sequenced,
            place: last.map_or(0, |last| last + 1),
        };
    }
}

/// loom's atomic, which holds numbers of stores.
struct Stores {
    newest: plain::AtomicUsize,
    /// The last that loom has run: a guess at what an exchange will find.
    latest: std_atomic::AtomicUsize,
    history: Arc<Mutex<History>>,
}

/// No store has this number: to compare with it reads the newest one and writes nothing.
const NONE: usize = usize::MAX;

impl Stores {
    #[track_caller]
    fn new() -> Self {
        let history = Arc::new(Mutex::new(History(vec![Store {
            sequenced: Some(0),
            place: 0,
        }])));
        ATOMICS.lock().unwrap().push(Arc::downgrade(&history));
        Stores {
            newest: plain::AtomicUsize::new(0),
            latest: std_atomic::AtomicUsize::new(0),
            history,
        }
    }

    /// The store that a load with this ordering sees.
    #[track_caller]
    fn load(&self, order: Ordering) -> usize {
        let bound = match order {
            Ordering::SeqCst => u64::MAX,
            _ => ALL_FENCED
                .get()
                .max(FENCED.try_with(Cell::get).unwrap_or(0)),
        };
        let allows = |store| self.history.lock().unwrap().allows(store, bound);
        // To leave loom no choice where only the newest is allowed saves it many runs. It sees that by
        // itself if both the stores and the load are `SeqCst`.
        if order != Ordering::SeqCst && self.history.lock().unwrap().allows_only_last(bound) {
            return self.see_newest(order);
        }
        let store = self.newest.load(order);
        if allows(store) {
            store
        } else {
            self.see_newest(order)
        }
    }

    #[track_caller]
    fn see_newest(&self, order: Ordering) -> usize {
        let seen = self.newest.compare_exchange(NONE, NONE, order, order);
        seen.unwrap_or_else(|store| store)
    }

    /// Notes that loom has just run this store.
    fn note(&self, store: usize, order: Ordering) {
        let now = tick();
        self.latest.store(store, Ordering::Relaxed);
        let is_sequenced = order == Ordering::SeqCst;
        self.history
            .lock()
            .unwrap()
            .ran(store, is_sequenced.then_some(now));
        if !is_sequenced {
            // A thread that has ended its thread-local variables runs no fence any more.
            let _ = UNFENCED.try_with(|unfenced| {
                unfenced.borrow_mut().push(Unfenced {
                    history: self.history.clone(),
                    store,
                });
            });
        }
    }
}

/// A fence of the standard's meaning.
pub fn fence(order: Ordering) {
    if order == Ordering::SeqCst {
        FENCES.swap(0, Ordering::Relaxed);
    }
    plain::fence(order);
    if order == Ordering::SeqCst {
        let now = tick();
        let _ = FENCED.try_with(|fenced| fenced.set(now));
        let unfenced = UNFENCED.try_with(|unfenced| unfenced.take());
        for unfenced in unfenced.unwrap_or_default() {
            unfenced.history.lock().unwrap().0[unfenced.store]
                .sequenced
                .get_or_insert(now);
        }
    }
}

/// Makes every thread of the model run a `SeqCst` fence.
pub fn barrier() {
    fence(Ordering::SeqCst);
    let now = tick();
    ALL_FENCED.set(now);
    for atomic in ATOMICS.lock().unwrap().iter() {
        if let Some(history) = atomic.upgrade() {
            for store in &mut history.lock().unwrap().0 {
                store.sequenced.get_or_insert(now);
            }
        }
    }
}

/// A fence for the compiler alone: no thread of a model notices it.
pub fn compiler_fence(_: Ordering) {}

macro_rules! atomic {
    ($name:ident $(<$of:ident>)?, $kind:ty) => {
        pub struct $name $(<$of>)? {
            stores: Stores,
            /// The value of each store.
            values: Mutex<Vec<std_atomic::$name $(<$of>)?>>,
        }

        #[allow(dead_code, reason = "not every kind needs everything")]
        impl $(<$of>)? $name $(<$of>)? {
            #[track_caller]
            pub fn new(value: $kind) -> Self {
                $name {
                    stores: Stores::new(),
                    values: Mutex::new(vec![std_atomic::$name::new(value)]),
                }
            }

            fn value(&self, store: usize) -> $kind {
                self.values.lock().unwrap()[store].load(Ordering::Relaxed)
            }

            /// A number for a store to come.
            fn prepare(&self, value: $kind) -> usize {
                let mut values = self.values.lock().unwrap();
                values.push(std_atomic::$name::new(value));
                // Until it is run it is no bound for a load.
                self.stores.history.lock().unwrap().0.push(Store::default());
                values.len() - 1
            }

            /// Stores the result of `with` on the value that the store replaces.
            #[track_caller]
            fn change(&self, with: impl FnOnce($kind) -> $kind, order: Ordering) -> $kind {
                let store = self.prepare(self.value(0));
                let before = self.value(self.stores.newest.swap(store, order));
                self.values.lock().unwrap()[store] = std_atomic::$name::new(with(before));
                self.stores.note(store, order);
                before
            }

            #[track_caller]
            pub fn load(&self, order: Ordering) -> $kind {
                self.value(self.stores.load(order))
            }

            #[track_caller]
            pub fn store(&self, value: $kind, order: Ordering) {
                let store = self.prepare(value);
                self.stores.newest.store(store, order);
                self.stores.note(store, order);
            }

            #[track_caller]
            pub fn swap(&self, value: $kind, order: Ordering) -> $kind {
                self.change(|_| value, order)
            }

            #[track_caller]
            pub fn compare_exchange(
                &self,
                current: $kind,
                new: $kind,
                success: Ordering,
                failure: Ordering,
            ) -> Result<$kind, $kind> {
                let latest = self.stores.latest.load(Ordering::Relaxed);
                let mut expected = if self.value(latest) == current { latest } else { NONE };
                loop {
                    let store = if expected == NONE { NONE } else { self.prepare(new) };
                    let newest = &self.stores.newest;
                    match newest.compare_exchange(expected, store, success, failure) {
                        Ok(_) => {
                            self.stores.note(store, success);
                            return Ok(current);
                        }
                        Err(seen) if self.value(seen) != current => return Err(self.value(seen)),
                        Err(seen) => expected = seen,
                    }
                }
            }

            #[track_caller]
            pub fn compare_exchange_weak(
                &self,
                current: $kind,
                new: $kind,
                success: Ordering,
                failure: Ordering,
            ) -> Result<$kind, $kind> {
                self.compare_exchange(current, new, success, failure)
            }

            #[track_caller]
            pub fn fetch_update(
                &self,
                success: Ordering,
                failure: Ordering,
                mut change: impl FnMut($kind) -> Option<$kind>,
            ) -> Result<$kind, $kind> {
                let mut now = self.load(failure);
                while let Some(new) = change(now) {
                    match self.compare_exchange(now, new, success, failure) {
                        Ok(before) => return Ok(before),
                        Err(newer) => now = newer,
                    }
                }
                Err(now)
            }
        }

        impl $(<$of>)? std::fmt::Debug for $name $(<$of>)? {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                self.values.fmt(f)
            }
        }
    };
}

/// The additional operations of atomics that count.
macro_rules! changes {
    ($name:ident, $kind:ty: $($change:ident = $with:expr),*) => {
        #[allow(dead_code, reason = "not every kind needs everything")]
        impl $name {
            $(
                #[track_caller]
                pub fn $change(&self, operand: $kind, order: Ordering) -> $kind {
                    let with: fn($kind, $kind) -> $kind = $with;
                    self.change(|now| with(now, operand), order)
                }
            )*
        }
    };
}

macro_rules! atomic_number {
    ($name:ident, $kind:ident) => {
        atomic!($name, $kind);
        changes!($name, $kind:
            fetch_add = $kind::wrapping_add,
            fetch_sub = $kind::wrapping_sub,
            fetch_and = |now, operand| now & operand,
            fetch_or = |now, operand| now | operand,
            fetch_max = Ord::max,
            fetch_min = Ord::min
        );
    };
}

atomic_number!(AtomicI32, i32);
atomic_number!(AtomicU32, u32);
atomic_number!(AtomicU64, u64);
atomic_number!(AtomicUsize, usize);
atomic!(AtomicBool, bool);
changes!(AtomicBool, bool:
    fetch_and = |now, operand| now & operand,
    fetch_or = |now, operand| now | operand
);
atomic!(AtomicPtr<T>, *mut T);
