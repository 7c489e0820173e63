//! `upoll soak`: all operations at random from many threads, for as long as it is told.
//!
//! A run is a sequence of rounds. A round makes a random world. Groups of consumers wait without a
//! limit in sets, polls and reads of every shape. Producers send units while they change, close,
//! nest, poll, signal and fork. When the producers have ended, every unit must
//! have been received exactly once by consumers that nothing but wakes brought there. A unit that
//! stays is a lost wake. Between rounds the heap and the descriptors must be what they were.
//!
//! Some rounds are in lockstep (see [`lockstep`]), and in some writers block (see [`rooms`]). More than half of the
//! rounds repeat races of two or three calls (see [`races`]), of threads or of processes: only many short tries hit a
//! window of a few instructions. In a build with `--cfg upoll_jitter` the windows are wide as well (`upoll_sys::jitter`).

mod asleep;
mod channel;
mod disturb;
mod footprint;
mod group;
mod hang;
mod lockstep;
mod races;
mod rooms;
mod tally;
mod waits;

use std::process::{self, ExitCode};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Barrier, Mutex, MutexGuard, PoisonError};
use std::thread::{self, ScopedJoinHandle};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use clap::ValueEnum;
use comfy_table::Table;
use fastrand::Rng;

use self::asleep::{Eagerness, comes};
use self::disturb::World;
use self::footprint::Footprint;
use self::group::How;
use self::hang::post;
use self::lockstep::Lockstep;
use self::races::Topic;
use self::tally::{Tally, count};
use crate::{interrupt, output};

/// Rounds before the first footprint counts: caches are filled in them.
const WARM_UP: usize = KINDS;

/// Descriptors by which the count may exceed the first one: those that the library keeps for later.
const SPARE_FDS: usize = 8;

/// Bytes by which the heap may differ from its first footprint.
const SLACK: usize = 1 << 20;

/// Of this many rounds one is long, without lockstep, one is in lockstep, four have races of calls, two have races of
/// processes, and two have objects with little room.
const KINDS: usize = 10;

/// Steps of a producer in a long round.
const STEPS: usize = 2_000;

/// The arguments of `upoll soak`.
#[derive(clap::Args)]
pub(crate) struct Options {
    /// The time to go on, also parts of a minute.
    #[arg(long, default_value_t = 1.0)]
    minutes: f64,
    /// The number of threads that send and change. Each round has as many consumers as its topologies ask for besides.
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u16).range(1..=256))]
    threads: u16,
    /// Makes the same objects and threads as an earlier run; their order in time differs.
    #[arg(long)]
    seed: Option<u64>,
    /// Only these ways to wait, separated by commas; one that does not exist has all of them listed.
    #[arg(
        long,
        value_delimiter = ',',
        value_name = "WAYS",
        hide_possible_values = true
    )]
    how: Vec<How>,
    /// Only races of a few calls, about these subjects, separated by commas; one that does not exist has all of them
    /// listed.
    #[arg(
        long,
        value_delimiter = ',',
        value_name = "SUBJECTS",
        conflicts_with = "how",
        hide_possible_values = true
    )]
    races: Vec<Topic>,
}

pub(crate) fn run(options: &Options) -> Result<ExitCode> {
    ensure!(
        options.minutes > 0.0 && options.minutes <= 10_000.0,
        "--minutes must be above 0 and at most 10000"
    );
    let seed = options.seed.unwrap_or_else(|| fastrand::u64(..));
    let end = Instant::now() + Duration::from_secs_f64(options.minutes * 60.0);
    let producers = options.threads;
    disturb::install_handler()?;
    interrupt::hold().context("holding Ctrl-C back")?;
    output::print(format_args!("seed {seed}, {producers} producers\n"))?;
    let hows = match &*options.how {
        [] => How::value_variants(),
        hows => hows,
    };
    let (tally, is_over) = (Tally::default(), AtomicBool::new(false));
    let has_begun = Barrier::new(2);
    thread::scope(|scope| {
        let watch = scope.spawn(|| {
            has_begun.wait();
            hang::watch(seed, &tally, &is_over);
        });
        // In the child of a fork beside a thread that is about to start no thread starts.
        has_begun.wait();
        let result = rounds(
            (hows, &options.races),
            Rng::with_seed(seed),
            usize::from(options.threads),
            &tally,
            end,
        );
        is_over.store(true, Ordering::SeqCst);
        watch.thread().unpark();
        result
    })?;
    Ok(match interrupt::is_pending() {
        true => ExitCode::from(interrupt::STATUS),
        false => ExitCode::SUCCESS,
    })
}

/// Makes rounds until `end` or Ctrl-C, and reports them.
fn rounds(
    (hows, topics): (&[How], &[Topic]),
    mut rng: Rng,
    producers: usize,
    tally: &Tally,
    end: Instant,
) -> Result<()> {
    let (mut rounds, mut first, mut most) = (0, None, None::<Footprint>);
    while (Instant::now() < end || rounds <= WARM_UP) && !interrupt::is_pending() {
        match topics {
            [] => round(hows, &mut rng, producers, tally, rounds)?,
            topics => races::round_of(topics, &mut rng, tally, &in_round(rounds))?,
        }
        rounds += 1;
        count(&tally.rounds);
        if rounds < WARM_UP {
            continue;
        }
        let now = Footprint::now()?;
        let first = *first.get_or_insert(now);
        ensure!(
            now.fds <= first.fds + SPARE_FDS,
            "round {rounds} left {} descriptors open, the first one left {}",
            now.fds,
            first.fds
        );
        ensure!(
            now.heap <= first.heap + SLACK,
            "round {rounds} left {} bytes on the heap, the first one left {}",
            now.heap,
            first.heap
        );
        let most = most.get_or_insert(now);
        most.heap = most.heap.max(now.heap);
        most.fds = most.fds.max(now.fds);
    }
    output::print(format_args!(
        "{}\nno unit lost or received twice, no thread left asleep\n",
        table(tally, first, most)
    ))?;
    Ok(())
}

fn table(tally: &Tally, first: Option<Footprint>, most: Option<Footprint>) -> Table {
    let mut table = Table::new();
    table.load_style(comfy_table::presets::UTF8_FULL_CONDENSED);
    for (name, count) in tally.rows() {
        table.add_row([name.to_owned(), count.to_string()]);
    }
    if let (Some(first), Some(most)) = (first, most) {
        let range = |first, most| format!("{first}, at most {most} later");
        table.add_row([
            "bytes on the heap after a round".to_owned(),
            range(first.heap, most.heap),
        ]);
        table.add_row([
            "descriptors after a round".to_owned(),
            range(first.fds, most.fds),
        ]);
    }
    table
}

/// Runs one world to its end, or some races of calls.
fn round(
    hows: &[How],
    rng: &mut Rng,
    producers: usize,
    tally: &Tally,
    number: usize,
) -> Result<()> {
    let _post = post("leads");
    change_pauses(rng);
    let (is_long, groups, producers) = match number % KINDS {
        0 => (true, rng.usize(1..=3), producers),
        2 | 6 => return rooms::round(rng, tally, &in_round(number)),
        1 | 3 | 5 | 7 => return races::round(rng, tally, &in_round(number)),
        8 | 9 => return races::round_of_processes(rng, tally, &in_round(number)),
        _ => (false, 1, rng.usize(1..=producers.min(lockstep::PRODUCERS))),
    };
    let world = World::new(hows, groups, producers, rng)?;
    let lockstep = Lockstep::new(producers);
    let running = AtomicUsize::new(producers);
    let fault = |what: &str| {
        give_up(
            &format!("round {number}, long: {is_long}: {what}"),
            &world.describe(),
        )
    };
    world.begin_signals();
    thread::scope(|scope| {
        let mut consumers = vec![scope.spawn(|| {
            let _post = post("reads what handlers and children write");
            world.consume_outside();
        })];
        for group in &world.groups {
            for index in 0..group.threads.len() {
                consumers.push(scope.spawn(move || {
                    let _post = post(format!("consumes in {}", group.describe()));
                    if let Err(error) = group.consume(index, tally) {
                        fault(&format!("{error:#}, in {}", group.describe()));
                    }
                }));
            }
        }
        let mut threads = Vec::new();
        for index in 0..producers {
            let mut rng = rng.fork();
            let (world, running, lockstep) = (&world, &running, &lockstep);
            threads.push(scope.spawn(move || {
                let _post = post("produces");
                world.enter(index);
                let result = if is_long {
                    world.produce(STEPS, &mut rng, tally)
                } else {
                    lockstep.produce(world, index == 0, &mut rng, tally)
                };
                if let Err(error) = result {
                    fault(&format!("{error:#}"));
                }
                running.fetch_sub(1, Ordering::SeqCst);
            }));
        }
        let must = |condition: &dyn Fn() -> bool, threads: &dyn Fn() -> Vec<i32>, what: &str| {
            if !comes(Eagerness::Sleeping, condition, threads) {
                fault(what);
            }
        };
        must(
            &|| running.load(Ordering::SeqCst) == 0,
            &|| world.threads(),
            "a producer hangs",
        );
        world.end_signals();
        must(
            &|| world.is_read(),
            &|| world.consumers(),
            "units are left, and no thread is woken for them",
        );
        tally.units.fetch_add(world.sent(), Ordering::Relaxed);
        must(
            &|| {
                world.end();
                consumers.iter().all(ScopedJoinHandle::is_finished)
            },
            &|| world.consumers(),
            "a consumer is not woken by its stop signal",
        );
        join_all(threads.into_iter().chain(consumers), &fault);
    });
    Ok(())
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Makes a new plan of the pauses within the library.
fn change_pauses(rng: &mut Rng) {
    // One plan of four has none.
    set_pauses(if rng.usize(..4) == 0 { 0 } else { rng.u64(..) });
}

/// Replaces the plan of the pauses within the library by one that is made of `seed`. 0: there are none. Only builds
/// with `--cfg upoll_jitter` have such pauses.
fn set_pauses(seed: u64) {
    #[cfg(upoll_jitter)]
    upoll::internal::jitter::set_plan(seed);
    #[cfg(not(upoll_jitter))]
    let _ = seed;
}

/// Returns what reports a fault in this round.
fn in_round(number: usize) -> impl Fn(&str) + Sync {
    move |what| give_up(&format!("round {number}: {what}"), "")
}

/// Waits until threads have ended. Unlike the end of their scope, this waits until they have closed what they keep for
/// themselves.
fn join_all<'s>(
    threads: impl IntoIterator<Item = ScopedJoinHandle<'s, ()>>,
    fault: &impl Fn(&str),
) {
    for thread in threads {
        if thread.join().is_err() {
            fault("a thread panicked");
        }
    }
}

/// Reports a fault and ends the process: threads of the world may hang.
fn give_up(what: &str, world: &str) -> ! {
    eprintln!("FAULT: {what}\n{world}");
    process::exit(1)
}
