//! The server's HTTP/1.1 (RFC 9112): the end of a request, and the response to it.
//!
//! This module does no input or output: [`Decoder`] parses the bytes that a connection has
//! received, and [`Answer`] writes into a buffer.
//!
//! There is one resource, `/`, for GET and HEAD. Bodies of requests are read and discarded, with a
//! given length as well as in chunks.

use httparse::{EMPTY_HEADER, Header, ParserConfig};

/// The content of `/`.
pub(super) const PAGE: &str = "Answered by one of several workers that share a listening socket.\n";
/// The greatest length of a request line with its header fields, and of the trailer fields.
const HEAD_LIMIT: usize = 8 * 1024;
/// The most header fields of a request.
const FIELDS_LIMIT: usize = 64;
/// The greatest length of a body. Bodies are discarded, so a longer one is refused.
const BODY_LIMIT: u64 = 1024 * 1024;
/// The greatest length of the line that begins a chunk.
const CHUNK_LINE_LIMIT: usize = 256;

/// The status codes of the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Status {
    Ok,
    BadRequest,
    NotFound,
    MethodNotAllowed,
    ContentTooLarge,
    UriTooLong,
    HeaderFieldsTooLarge,
    NotImplemented,
    VersionNotSupported,
}

impl Status {
    fn line(self) -> &'static str {
        match self {
            Status::Ok => "200 OK",
            Status::BadRequest => "400 Bad Request",
            Status::NotFound => "404 Not Found",
            Status::MethodNotAllowed => "405 Method Not Allowed",
            Status::ContentTooLarge => "413 Content Too Large",
            Status::UriTooLong => "414 URI Too Long",
            Status::HeaderFieldsTooLarge => "431 Request Header Fields Too Large",
            Status::NotImplemented => "501 Not Implemented",
            Status::VersionNotSupported => "505 HTTP Version Not Supported",
        }
    }
}

/// The response to one request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Answer {
    pub(super) status: Status,
    /// The response to HEAD has no body.
    with_body: bool,
    pub(super) then: Then,
}

/// The fate of the connection after a response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Then {
    /// The connection stays open, the default of HTTP/1.1.
    Stay,
    /// The connection stays open because an HTTP/1.0 client asked for it, which expects a
    /// confirmation.
    StayAsAsked,
    Close,
    /// The connection closes although the client may still be sending: the start of the next
    /// request is unknown.
    CloseUnread,
}

impl Answer {
    /// Refuses a malformed request. The start of the next request is unknown.
    fn refusal(status: Status) -> Self {
        Answer {
            status,
            with_body: true,
            then: Then::CloseUnread,
        }
    }

    /// Appends the response to `out`.
    pub(super) fn write(&self, out: &mut Vec<u8>) {
        let line = self.status.line();
        let error_page;
        let page = if self.status == Status::Ok {
            PAGE
        } else {
            error_page = format!("{line}\n");
            &error_page
        };
        let allow = match self.status {
            Status::MethodNotAllowed => "Allow: GET, HEAD\r\n",
            _ => "",
        };
        let connection = match self.then {
            Then::Stay => "",
            Then::StayAsAsked => "Connection: keep-alive\r\n",
            Then::Close | Then::CloseUnread => "Connection: close\r\n",
        };
        let length = page.len().to_string();
        for part in [
            "HTTP/1.1 ",
            line,
            "\r\nContent-Type: text/plain; charset=utf-8\r\nContent-Length: ",
            &length,
            "\r\n",
            allow,
            connection,
            "\r\n",
            if self.with_body { page } else { "" },
        ] {
            out.extend_from_slice(part.as_bytes());
        }
    }
}

/// The result of parsing the received bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Found {
    /// The request is not complete.
    Nothing,
    /// The client waits for [`CONTINUE`] before it sends the body.
    ContinueAwaited,
    /// A whole request, including its body.
    Request(Answer),
}

/// Allows a client that waits for it to send the body.
pub(super) const CONTINUE: &[u8] = b"HTTP/1.1 100 Continue\r\n\r\n";

/// Parses the requests of a connection, one after the other.
#[derive(Debug)]
pub(super) struct Decoder {
    expecting: Expecting,
}

#[derive(Debug)]
enum Expecting {
    Head,
    Body {
        left: u64,
        answer: Answer,
    },
    Chunks {
        at: Chunk,
        /// The greatest length that the rest of the body may have.
        room: u64,
        answer: Answer,
    },
}

/// A position in a chunked body.
#[derive(Debug)]
enum Chunk {
    Size,
    Data { left: u64 },
    DataEnd,
    Trailer { seen: usize },
}

impl Decoder {
    pub(super) fn new() -> Self {
        Decoder {
            expecting: Expecting::Head,
        }
    }

    /// Parses `input`. Returns the number of bytes that it has consumed, and what they were.
    ///
    /// The caller repeats this as long as it finds something. After a response that closes the
    /// connection it finds nothing more.
    pub(super) fn next(&mut self, input: &[u8]) -> (usize, Found) {
        let mut used = 0;
        loop {
            let rest = &input[used..];
            let step = match &mut self.expecting {
                Expecting::Head => return self.head(rest),
                Expecting::Body { left, answer } => {
                    let here = within(*left, rest);
                    *left -= here as u64;
                    Step::Used(here, (*left == 0).then_some(*answer))
                }
                Expecting::Chunks { at, room, answer } => at.step(rest, room, *answer),
            };
            match step {
                Step::Used(here, Some(answer)) => {
                    self.expecting = Expecting::Head;
                    return (used + here, Found::Request(answer));
                }
                Step::Used(0, None) => return (used, Found::Nothing),
                Step::Used(here, None) => used += here,
                Step::Refused(status) => {
                    self.expecting = Expecting::Head;
                    return (input.len(), Found::Request(Answer::refusal(status)));
                }
            }
        }
    }

    fn head(&mut self, input: &[u8]) -> (usize, Found) {
        let mut fields = [EMPTY_HEADER; FIELDS_LIMIT];
        let mut request = httparse::Request::new(&mut fields);
        let parsed = ParserConfig::default().parse_request(&mut request, input);
        let refused = |status| (input.len(), Found::Request(Answer::refusal(status)));
        let length = match parsed {
            Ok(httparse::Status::Complete(length)) if length <= HEAD_LIMIT => length,
            Ok(httparse::Status::Partial) if input.len() < HEAD_LIMIT => {
                return (0, Found::Nothing);
            }
            // The head is too long: mostly because of the target, or because of the rest?
            Ok(_) if request.path.is_none_or(|path| path.len() > HEAD_LIMIT / 2) => {
                return refused(Status::UriTooLong);
            }
            Ok(_) | Err(httparse::Error::TooManyHeaders) => {
                return refused(Status::HeaderFieldsTooLarge);
            }
            Err(httparse::Error::Version) => return refused(Status::VersionNotSupported),
            Err(_) => return refused(Status::BadRequest),
        };
        let (Some(method), Some(target), Some(version)) =
            (request.method, request.path, request.version)
        else {
            return refused(Status::BadRequest);
        };
        let fields = match Fields::read(request.headers, version) {
            Ok(fields) => fields,
            Err(status) => return refused(status),
        };
        let answer = Answer {
            status: judge(method, target),
            with_body: method != "HEAD",
            then: match (version, fields.close, fields.keep_alive) {
                (_, true, _) | (0, _, false) => Then::Close,
                (0, _, true) => Then::StayAsAsked,
                _ => Then::Stay,
            },
        };
        self.expecting = match fields.body {
            Body::None => return (length, Found::Request(answer)),
            Body::Length(left) => Expecting::Body { left, answer },
            Body::Chunked => Expecting::Chunks {
                at: Chunk::Size,
                room: BODY_LIMIT,
                answer,
            },
        };
        if fields.expects_continue && input.len() == length {
            return (length, Found::ContinueAwaited);
        }
        let (used, found) = self.next(&input[length..]);
        (length + used, found)
    }
}

enum Step {
    /// This many bytes are consumed; the response, if the request ends there.
    Used(usize, Option<Answer>),
    Refused(Status),
}

impl Chunk {
    fn step(&mut self, input: &[u8], room: &mut u64, answer: Answer) -> Step {
        match self {
            Chunk::Size => match httparse::parse_chunk_size(input) {
                Ok(httparse::Status::Complete((_, size))) if size > *room => {
                    Step::Refused(Status::ContentTooLarge)
                }
                Ok(httparse::Status::Complete((used, size))) => {
                    *room -= size;
                    *self = match size {
                        0 => Chunk::Trailer { seen: 0 },
                        left => Chunk::Data { left },
                    };
                    Step::Used(used, None)
                }
                Ok(httparse::Status::Partial) if input.len() < CHUNK_LINE_LIMIT => {
                    Step::Used(0, None)
                }
                _ => Step::Refused(Status::BadRequest),
            },
            Chunk::Data { left } => {
                let here = within(*left, input);
                *left -= here as u64;
                if *left == 0 {
                    *self = Chunk::DataEnd;
                }
                Step::Used(here, None)
            }
            Chunk::DataEnd => match input {
                [b'\r', b'\n', ..] => {
                    *self = Chunk::Size;
                    Step::Used(2, None)
                }
                [] | [b'\r'] => Step::Used(0, None),
                _ => Step::Refused(Status::BadRequest),
            },
            Chunk::Trailer { seen } => {
                let end = input.iter().position(|&byte| byte == b'\n');
                let line = &input[..end.map_or(input.len(), |end| end + 1)];
                if *seen + line.len() > HEAD_LIMIT {
                    return Step::Refused(Status::HeaderFieldsTooLarge);
                }
                match (end, line) {
                    (None, _) => Step::Used(0, None),
                    (Some(_), b"\r\n" | b"\n") => Step::Used(line.len(), Some(answer)),
                    (Some(_), line) => {
                        *seen += line.len();
                        Step::Used(line.len(), None)
                    }
                }
            }
        }
    }
}

/// Returns how much of `input` belongs to the `left` bytes that are expected.
fn within(left: u64, input: &[u8]) -> usize {
    usize::try_from(left).map_or(input.len(), |left| left.min(input.len()))
}

/// The framing of a request's body.
enum Body {
    None,
    Length(u64),
    Chunked,
}

/// The header fields that the server uses.
struct Fields {
    body: Body,
    close: bool,
    keep_alive: bool,
    expects_continue: bool,
}

impl Fields {
    fn read(fields: &[Header<'_>], version: u8) -> Result<Self, Status> {
        let mut hosts = 0;
        let mut length = None;
        let mut coding = None;
        let mut found = Fields {
            body: Body::None,
            close: false,
            keep_alive: false,
            expects_continue: false,
        };
        for field in fields {
            let is = |name: &str| field.name.eq_ignore_ascii_case(name);
            let has = |token: &str| {
                field
                    .value
                    .split(|&byte| byte == b',')
                    .any(|part| part.trim_ascii().eq_ignore_ascii_case(token.as_bytes()))
            };
            if is("Host") {
                hosts += 1;
            } else if is("Connection") {
                found.close |= has("close");
                found.keep_alive |= has("keep-alive");
            } else if is("Expect") {
                found.expects_continue |= version > 0 && has("100-continue");
            } else if is("Content-Length") {
                let value = decimal(field.value).ok_or(Status::BadRequest)?;
                if length.replace(value).is_some_and(|before| before != value) {
                    return Err(Status::BadRequest);
                }
            } else if is("Transfer-Encoding") {
                let chunked_alone =
                    coding.is_none() && field.value.eq_ignore_ascii_case(b"chunked");
                coding = Some(chunked_alone);
            }
        }
        // An HTTP/1.1 client must name the host. Two hosts, or two body lengths, are used to
        // smuggle requests past a proxy.
        if hosts > 1 || (version > 0 && hosts == 0) {
            return Err(Status::BadRequest);
        }
        found.body = match (coding, length) {
            (Some(_), Some(_)) => return Err(Status::BadRequest),
            (Some(_), None) if version == 0 => return Err(Status::BadRequest),
            (Some(false), None) => return Err(Status::NotImplemented),
            (Some(true), None) => Body::Chunked,
            (None, None | Some(0)) => Body::None,
            (None, Some(length)) if length > BODY_LIMIT => return Err(Status::ContentTooLarge),
            (None, Some(length)) => Body::Length(length),
        };
        Ok(found)
    }
}

fn decimal(digits: &[u8]) -> Option<u64> {
    let all_digits = !digits.is_empty() && digits.iter().all(u8::is_ascii_digit);
    let digits = std::str::from_utf8(digits).ok()?;
    digits.parse().ok().filter(|_| all_digits)
}

fn judge(method: &str, target: &str) -> Status {
    match method {
        "GET" | "HEAD" => {}
        "POST" | "PUT" | "DELETE" | "CONNECT" | "OPTIONS" | "TRACE" | "PATCH" => {
            return Status::MethodNotAllowed;
        }
        _ => return Status::NotImplemented,
    }
    // The target may be a whole URI, as for a proxy.
    let path = match target.split_once("://") {
        Some((scheme, rest)) if scheme.bytes().all(|byte| byte.is_ascii_alphabetic()) => {
            match rest.find(['/', '?']) {
                Some(at) => &rest[at..],
                None => "/",
            }
        }
        _ => target,
    };
    match path.as_bytes() {
        b"/" | [b'/', b'?', ..] | [b'?', ..] => Status::Ok,
        _ => Status::NotFound,
    }
}

#[cfg(test)]
mod tests;
