//! A deterministic simulator: clients and a server over a slow network, on one thread and in virtual time.
//!
//! Runs with the same seed have the same trace. The server has a fault, if it is asked for: it takes one request for each edge, and
//! two requests that arrive at the same time are one edge. The second one is lost until the next request comes.

use std::time::Duration;

use upoll::channel::{Receiver, Sender, unbounded};
use upoll::{Epoll, Errno, Event, Events, Timer, Timers};

const CLIENTS: usize = 3;
const REQUESTS: usize = 5;
const TIMEOUT: Duration = Duration::from_millis(20);
const ONCE: Duration = Duration::ZERO;

/// The data of an event is the place of a mailbox, the clients' and then the server's, or one of these and the
/// number of a client or a letter.
const SERVER: usize = CLIENTS;
const TIMER_OF_CLIENT: usize = 100;
const LETTER: usize = 200;

struct Simulation {
    takes_all: bool,
    random: u64,
    timers: Timers,
    set: Epoll,
    /// A letter is the number of the client that it concerns.
    mailboxes: Vec<(Sender<usize>, Receiver<usize>)>,
    /// A client asks when its timer fires, or gives up if it waits for an answer.
    client_timers: Vec<Timer>,
    waits: [bool; CLIENTS],
    left: [usize; CLIENTS],
    /// Letters arrive when their timers fire: the letter, and the mailbox.
    letters: Vec<(Timer, usize, usize)>,
    trace: String,
    gave_up: usize,
}

impl Simulation {
    /// Returns a random number of milliseconds, from 1 to `most` (a linear congruential generator).
    fn milliseconds(&mut self, most: u64) -> Duration {
        let scaled = self.random.wrapping_mul(6_364_136_223_846_793_005);
        self.random = scaled.wrapping_add(1);
        Duration::from_millis(1 + (self.random >> 33) % most)
    }

    fn log(&mut self, what: &str) {
        self.trace += &format!("{:4} ms: {what}\n", self.timers.now().as_millis());
    }

    /// Adds a timer to the set.
    fn timer(&mut self, data: usize, after: Duration) -> Result<Timer, Errno> {
        let timer = self.timers.timer()?;
        self.set.add(&timer, Event::new(Events::IN, data as u64))?;
        timer.arm(after, ONCE);
        Ok(timer)
    }

    fn send(&mut self, letter: usize, to: usize) -> Result<(), Errno> {
        let delay = self.milliseconds(4);
        let timer = self.timer(LETTER + self.letters.len(), delay)?;
        self.letters.push((timer, letter, to));
        Ok(())
    }

    fn handle(&mut self, data: usize) -> Result<(), Errno> {
        if data >= LETTER {
            let (timer, letter, to) = &self.letters[data - LETTER];
            self.set.delete(timer)?;
            let _ = self.mailboxes[*to].0.try_send(*letter);
        } else if data >= TIMER_OF_CLIENT {
            let client = data - TIMER_OF_CLIENT;
            self.client_timers[client].try_read()?;
            if self.waits[client] {
                self.log(&format!("client {client} gives up"));
                self.gave_up += 1;
            } else {
                self.log(&format!("client {client} asks"));
                self.client_timers[client].arm(TIMEOUT, ONCE);
                self.send(client, SERVER)?;
            }
            self.waits[client] = !self.waits[client];
        } else if data == SERVER {
            while let Ok(client) = self.mailboxes[SERVER].1.try_recv() {
                self.log(&format!("the server answers client {client}"));
                self.send(client, client)?;
                if !self.takes_all {
                    break;
                }
            }
        } else if self.mailboxes[data].1.try_recv().is_ok() && self.waits[data] {
            self.log(&format!("client {data} has its answer"));
            self.waits[data] = false;
            self.client_timers[data].disarm();
            self.left[data] -= 1;
            if self.left[data] > 0 {
                let pause = self.milliseconds(3);
                self.client_timers[data].arm(pause, ONCE);
            }
        }
        Ok(())
    }
}

/// Runs the simulation. Returns its trace, and how many requests got no answer in time.
pub fn simulate(seed: u64, takes_all: bool) -> Result<(String, usize), Errno> {
    let mut simulation = Simulation {
        takes_all,
        random: seed,
        timers: Timers::new()?,
        set: Epoll::new()?,
        mailboxes: (0..=SERVER)
            .map(|_| unbounded())
            .collect::<Result<_, _>>()?,
        client_timers: Vec::new(),
        waits: [false; CLIENTS],
        left: [REQUESTS; CLIENTS],
        letters: Vec::new(),
        trace: String::new(),
        gave_up: 0,
    };
    for (place, (_, mailbox)) in simulation.mailboxes.iter().enumerate() {
        let edge = if place == SERVER {
            Events::ET
        } else {
            Events::empty()
        };
        simulation
            .set
            .add(mailbox, Event::new(Events::IN | edge, place as u64))?;
    }
    for client in 0..CLIENTS {
        let pause = simulation.milliseconds(3);
        let timer = simulation.timer(TIMER_OF_CLIENT + client, pause)?;
        simulation.client_timers.push(timer);
    }
    // ANCHOR: loop
    let mut events = [Event::default(); 16];
    loop {
        let ready = simulation.set.try_wait(&mut events)?;
        for event in &events[..ready] {
            simulation.handle(usize::try_from(event.data()).expect("it was one"))?;
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
    print!("{}", simulate(1, true)?.0);
    let with_fault = (1..).map(|seed| (seed, simulate(seed, false)));
    for (seed, run) in with_fault {
        let (trace, gave_up) = run?;
        if gave_up > 0 {
            print!("With the fault, by seed {seed}:\n{trace}");
            break;
        }
    }
    Ok(())
}
