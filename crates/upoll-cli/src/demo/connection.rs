//! One connection of the server: bytes in, answers out, never blocking.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::time::Instant;

use upoll::Events;

use super::http::{CONTINUE, Decoder, Found, Then};

/// With this many bytes of answers unsent, the client must read before more is read from it.
const UNSENT_LIMIT: usize = 64 * 1024;
/// How much of what a client still sends after its last answer is thrown away.
const LEFTOVER_LIMIT: usize = 256 * 1024;

/// What a connection needs next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Next {
    Wait(Events),
    Close,
}

/// A client's connection, and what is on its way in and out.
#[derive(Debug)]
pub(super) struct Connection {
    pub(super) stream: TcpStream,
    decoder: Decoder,
    /// Received, and not understood yet.
    received: Vec<u8>,
    /// Answers; those before `sent` have gone out.
    answers: Vec<u8>,
    sent: usize,
    ending: Ending,
    /// What the worker's set watches it for.
    pub(super) watched_for: Events,
    /// When it last did something.
    pub(super) active: Instant,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ending {
    /// More requests may come.
    Open,
    /// It closes when the answers are out.
    Close,
    /// It closes when the answers are out and the client has stopped sending. To close with bytes
    /// unread would reset the connection, and the client might lose the answer.
    AfterLeftover,
    /// The answers are out: so many more bytes are thrown away.
    Leftover(usize),
}

impl Connection {
    pub(super) fn new(stream: TcpStream, now: Instant) -> Self {
        Connection {
            stream,
            decoder: Decoder::new(),
            received: Vec::new(),
            answers: Vec::new(),
            sent: 0,
            ending: Ending::Open,
            watched_for: Events::IN,
            active: now,
        }
    }

    /// Goes on after an event: one read, then as many answers as there are whole requests.
    /// Counts those in `requests`. `scratch` is where to read to.
    pub(super) fn advance(&mut self, scratch: &mut [u8], requests: &mut u64) -> Next {
        self.try_advance(scratch, requests).unwrap_or(Next::Close)
    }

    /// An error is the client's going away: there is nobody to tell.
    fn try_advance(&mut self, scratch: &mut [u8], requests: &mut u64) -> io::Result<Next> {
        if let Ending::Leftover(left) = self.ending {
            return Ok(match self.read(scratch)? {
                None => Next::Wait(Events::IN),
                Some(0) => Next::Close,
                Some(read) if read > left => Next::Close,
                Some(read) => {
                    self.ending = Ending::Leftover(left - read);
                    Next::Wait(Events::IN)
                }
            });
        }
        if self.answers.is_empty() {
            match self.read(scratch)? {
                None => {}
                Some(0) => return Ok(Next::Close),
                Some(read) => self.received.extend_from_slice(&scratch[..read]),
            }
        }
        loop {
            let more = self.answer(requests);
            if !self.send()? {
                return Ok(Next::Wait(Events::OUT));
            }
            if !more {
                break;
            }
        }
        match self.ending {
            Ending::Open => Ok(Next::Wait(Events::IN)),
            Ending::Close => Ok(Next::Close),
            Ending::AfterLeftover | Ending::Leftover(_) => {
                self.stream.shutdown(Shutdown::Write)?;
                self.ending = Ending::Leftover(LEFTOVER_LIMIT);
                Ok(Next::Wait(Events::IN))
            }
        }
    }

    /// Answers the requests that have arrived; whether there may be more when these answers are
    /// out.
    fn answer(&mut self, requests: &mut u64) -> bool {
        let mut done = 0;
        let more = loop {
            if self.ending != Ending::Open {
                break false;
            }
            if self.answers.len() >= UNSENT_LIMIT {
                break true;
            }
            let (used, found) = self.decoder.next(&self.received[done..]);
            done += used;
            match found {
                Found::Nothing => break false,
                Found::ContinueAwaited => self.answers.extend_from_slice(CONTINUE),
                Found::Request(answer) => {
                    *requests += 1;
                    answer.write(&mut self.answers);
                    self.ending = match answer.then {
                        Then::Stay | Then::StayAsAsked => Ending::Open,
                        Then::Close if done == self.received.len() => Ending::Close,
                        Then::Close | Then::CloseUnread => Ending::AfterLeftover,
                    };
                }
            }
        };
        self.received.drain(..done);
        more
    }

    /// Sends answers; whether all are out.
    fn send(&mut self) -> io::Result<bool> {
        while self.sent < self.answers.len() {
            match self.stream.write(&self.answers[self.sent..]) {
                Ok(0) => return Err(ErrorKind::WriteZero.into()),
                Ok(written) => self.sent += written,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(false),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        self.answers.clear();
        self.sent = 0;
        Ok(true)
    }

    /// Reads once: `None` if there is nothing yet, 0 at the end.
    fn read(&mut self, scratch: &mut [u8]) -> io::Result<Option<usize>> {
        loop {
            return match self.stream.read(scratch) {
                Ok(read) => Ok(Some(read)),
                Err(error) if error.kind() == ErrorKind::WouldBlock => Ok(None),
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                Err(error) => Err(error),
            };
        }
    }
}
