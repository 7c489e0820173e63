//! One connection of the server: it reads requests and sends responses, and never blocks.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::time::Instant;

use upoll::Events;

use super::http::{CONTINUE, Decoder, Found, Then};

/// With this many unsent bytes no more requests are read, until the client has read some.
const UNSENT_LIMIT: usize = 64 * 1024;
/// The number of bytes that are discarded after the last response.
const LEFTOVER_LIMIT: usize = 256 * 1024;

/// The next step of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Next {
    Wait(Events),
    Close,
}

/// A client's connection with its buffers.
#[derive(Debug)]
pub(super) struct Connection {
    pub(super) stream: TcpStream,
    decoder: Decoder,
    /// Bytes that are received and not parsed yet.
    received: Vec<u8>,
    /// Responses; the bytes before `sent` have been sent.
    answers: Vec<u8>,
    sent: usize,
    ending: Ending,
    /// The events that the worker's set watches it for.
    pub(super) watched_for: Events,
    /// The time of its last activity.
    pub(super) active: Instant,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ending {
    /// More requests may come.
    Open,
    /// The connection closes when all responses are sent.
    Close,
    /// The connection closes when all responses are sent and the client has stopped sending. A
    /// close with unread bytes would reset the connection, and the client might lose the response.
    AfterLeftover,
    /// All responses are sent; up to this many more bytes are discarded.
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

    /// Handles an event: reads once, and sends a response for each whole request. Adds the number
    /// of these to `requests`. `scratch` is the read buffer.
    pub(super) fn advance(&mut self, scratch: &mut [u8], requests: &mut u64) -> Next {
        self.try_advance(scratch, requests).unwrap_or(Next::Close)
    }

    /// An error means that the client is gone, so there is nobody to report it to.
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

    /// Writes responses to the requests that have arrived. Returns whether more may follow once
    /// these are sent.
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

    /// Sends responses. Returns whether all are sent.
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

    /// Reads once. Returns `None` if there is nothing yet, and 0 at the end.
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
