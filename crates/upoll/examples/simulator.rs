//! A deterministic simulator: clients and a server over a slow network, on one thread and in virtual time.
//!
//! Runs with the same seed have the same trace. The server has a fault, if it is asked for: it takes one request for each edge, and
//! two requests that arrive at the same time are one edge. The second one is lost until the next request comes.

use std::collections::VecDeque;
use std::fmt::Write;
use std::sync::Mutex;
use std::time::Duration;

use upoll::{Epoll, Errno, Event, Events, File, PollTable, Pollable, Timer, Timers, WaitQueue};

const CLIENTS: usize = 3;
const REQUESTS: usize = 5;
const TIMEOUT: Duration = Duration::from_millis(20);
const ONCE: Duration = Duration::ZERO;

/// The way in which the server takes requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Server {
    /// All that are there, as an edge-triggered reader must.
    TakesAll,
    /// One: the planted fault.
    TakesOne,
}

/// Letters for the server, or for a client. Each is the number of the client that it concerns.
#[derive(Default)]
struct Mailbox {
    letters: Mutex<VecDeque<usize>>,
    arrived: WaitQueue,
}

impl Mailbox {
    fn put(&self, letter: usize) {
        self.letters.lock().unwrap().push_back(letter);
        self.arrived.wake(Events::IN);
    }

    fn take(&self) -> Option<usize> {
        self.letters.lock().unwrap().pop_front()
    }
}

impl Pollable for Mailbox {
    fn poll<'q>(&'q self, table: &mut PollTable<'q>) -> Events {
        table.register(&self.arrived);
        match self.letters.lock().unwrap().is_empty() {
            true => Events::empty(),
            false => Events::IN,
        }
    }
}

/// Random numbers (SplitMix64).
struct Random(u64);

impl Random {
    fn milliseconds(&mut self, from: u64, to: u64) -> Duration {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        Duration::from_millis(from + (mixed ^ mixed >> 31) % (to - from + 1))
    }
}

/// A letter on its way: it arrives when the timer fires.
struct Flight {
    timer: Timer,
    letter: usize,
    to: usize,
}

/// The place of the server's mailbox, after those of the clients.
const SERVER: usize = CLIENTS;
/// The data of an event: a mailbox, the timer of a client, or a flight.
const TIMER_OF_CLIENT: usize = 100;
const FLIGHT: usize = 200;

struct Simulation {
    random: Random,
    timers: Timers,
    set: Epoll,
    mailboxes: Vec<File<Mailbox>>,
    /// Of each client: it sends when the timer fires, or gives up if it waits for an answer.
    client_timers: Vec<Timer>,
    waits: [bool; CLIENTS],
    left: [usize; CLIENTS],
    flights: Vec<Flight>,
    trace: String,
    gave_up: usize,
}

impl Simulation {
    fn log(&mut self, what: &str) {
        let now = self.timers.now().as_millis();
        writeln!(self.trace, "{now:4} ms: {what}").expect("a string takes all");
    }

    fn send(&mut self, letter: usize, to: usize) -> Result<(), Errno> {
        let timer = self.timers.timer()?;
        let data = FLIGHT + self.flights.len();
        self.set.add(&timer, Event::new(Events::IN, data as u64))?;
        timer.arm(self.random.milliseconds(1, 4), ONCE);
        self.flights.push(Flight { timer, letter, to });
        Ok(())
    }

    fn handle(&mut self, data: usize, server: Server) -> Result<(), Errno> {
        if data >= FLIGHT {
            let Flight { timer, letter, to } = &self.flights[data - FLIGHT];
            timer.try_read()?;
            self.set.delete(timer)?;
            self.mailboxes[*to].put(*letter);
        } else if data >= TIMER_OF_CLIENT {
            let client = data - TIMER_OF_CLIENT;
            self.client_timers[client].try_read()?;
            if self.waits[client] {
                self.log(&format!("client {client} gives up"));
                self.waits[client] = false;
                self.gave_up += 1;
            } else {
                self.log(&format!("client {client} asks"));
                self.waits[client] = true;
                self.client_timers[client].arm(TIMEOUT, ONCE);
                self.send(client, SERVER)?;
            }
        } else if data == SERVER {
            while let Some(client) = self.mailboxes[SERVER].take() {
                self.log(&format!("the server answers client {client}"));
                self.send(client, client)?;
                if server == Server::TakesOne {
                    break;
                }
            }
        } else if let Some(client) = self.mailboxes[data].take()
            && self.waits[client]
        {
            self.log(&format!("client {client} has its answer"));
            self.waits[client] = false;
            self.client_timers[client].disarm();
            self.left[client] -= 1;
            if self.left[client] > 0 {
                self.client_timers[client].arm(self.random.milliseconds(1, 3), ONCE);
            }
        }
        Ok(())
    }
}

/// Runs the simulation. Returns its trace, and how many requests got no answer in time.
pub fn simulate(seed: u64, server: Server) -> Result<(String, usize), Errno> {
    let timers = Timers::new()?;
    let mut simulation = Simulation {
        random: Random(seed),
        set: Epoll::new()?,
        mailboxes: (0..=SERVER)
            .map(|_| File::new(Mailbox::default()))
            .collect(),
        client_timers: (0..CLIENTS)
            .map(|_| timers.timer())
            .collect::<Result<_, _>>()?,
        timers,
        waits: [false; CLIENTS],
        left: [REQUESTS; CLIENTS],
        flights: Vec::new(),
        trace: String::new(),
        gave_up: 0,
    };
    for (place, mailbox) in simulation.mailboxes.iter().enumerate() {
        let edge = if place == SERVER {
            Events::ET
        } else {
            Events::empty()
        };
        let interest = Event::new(Events::IN | edge, place as u64);
        simulation.set.add(mailbox, interest)?;
    }
    for (client, timer) in simulation.client_timers.iter().enumerate() {
        let data = TIMER_OF_CLIENT + client;
        simulation
            .set
            .add(timer, Event::new(Events::IN, data as u64))?;
        timer.arm(simulation.random.milliseconds(1, 3), ONCE);
    }
    // ANCHOR: loop
    let mut events = [Event::default(); 16];
    loop {
        let ready = simulation.set.try_wait(&mut events)?;
        for event in &events[..ready] {
            let data = usize::try_from(event.data()).expect("it was one");
            simulation.handle(data, server)?;
        }
        if ready == 0 {
            // Nothing happens until the next timer fires.
            match simulation.timers.next_due() {
                Some(next) => simulation.timers.advance(next)?,
                None => return Ok((simulation.trace, simulation.gave_up)),
            };
        }
    }
    // ANCHOR_END: loop
}

#[allow(
    dead_code,
    reason = "the test of this example has a main function of its own"
)]
fn main() -> Result<(), Errno> {
    let (trace, _) = simulate(1, Server::TakesAll)?;
    print!("{trace}");
    for seed in 1.. {
        let (trace, gave_up) = simulate(seed, Server::TakesOne)?;
        if gave_up > 0 {
            println!("With the fault, by seed {seed}:");
            print!("{trace}");
            break;
        }
    }
    Ok(())
}
