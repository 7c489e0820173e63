//! Framing: requests, their ends, and the responses.

use super::{
    Answer, BODY_LIMIT, CONTINUE, Decoder, FIELDS_LIMIT, Found, HEAD_LIMIT, PAGE, Status, Then,
};

/// Returns all that is found in `input` if it arrives in pieces of `piece` bytes, and the number of
/// bytes that were consumed.
fn find_in_pieces(input: &[u8], piece: usize) -> (Vec<Found>, usize) {
    let mut decoder = Decoder::new();
    let (mut found, mut done) = (Vec::new(), 0);
    for end in (piece..input.len()).step_by(piece).chain([input.len()]) {
        loop {
            let (used, one) = decoder.next(&input[done..end]);
            done += used;
            match one {
                Found::Nothing => break,
                one => found.push(one),
            }
            if matches!(one, Found::Request(answer) if answer.then == Then::CloseUnread) {
                return (found, done);
            }
        }
    }
    (found, done)
}

fn answers(input: &[u8]) -> Vec<Answer> {
    let (found, _) = find_in_pieces(input, input.len());
    found
        .into_iter()
        .filter_map(|found| match found {
            Found::Request(answer) => Some(answer),
            _ => None,
        })
        .collect()
}

fn statuses(input: &[u8]) -> Vec<Status> {
    answers(input).iter().map(|answer| answer.status).collect()
}

fn text(answer: Answer) -> String {
    let mut out = Vec::new();
    answer.write(&mut out);
    String::from_utf8(out).expect("answers are text")
}

const GET: &[u8] = b"GET / HTTP/1.1\r\nHost: a\r\n\r\n";

#[test]
fn an_answer_is_an_answer_to_a_client_that_parses_it() {
    for (request, status, length) in [
        (GET, 200, PAGE.len()),
        (b"GET /x HTTP/1.1\r\nHost: a\r\n\r\n", 404, 14),
        (b"POST / HTTP/1.1\r\nHost: a\r\n\r\n", 405, 23),
    ] {
        let sent = text(answers(request)[0]);
        let mut fields = [httparse::EMPTY_HEADER; 8];
        let mut answer = httparse::Response::new(&mut fields);
        let head = answer.parse(sent.as_bytes()).expect("well-formed").unwrap();
        assert_eq!(answer.code, Some(status));
        let content_length = answer
            .headers
            .iter()
            .find(|field| field.name == "Content-Length")
            .expect("the length is told");
        assert_eq!(content_length.value, length.to_string().as_bytes());
        assert_eq!(sent.len() - head, length);
    }
}

#[test]
fn head_gets_the_head_of_get_alone() {
    let get = text(answers(GET)[0]);
    let head = text(answers(b"HEAD / HTTP/1.1\r\nHost: a\r\n\r\n")[0]);
    assert_eq!(get.strip_suffix(PAGE), Some(head.as_str()));
}

#[test]
fn a_request_may_arrive_in_pieces_of_any_size() {
    let input: Vec<u8> = [
        GET,
        b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nGET /",
        b"POST /a HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n",
        b"5;x=y\r\n12345\r\nA\r\n1234567890\r\n0\r\nTrailer: 1\r\n\r\n",
        b"GET /b HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n",
    ]
    .concat();
    let whole = find_in_pieces(&input, input.len());
    assert_eq!(whole.0.len(), 4);
    for piece in 1..input.len() {
        assert_eq!(find_in_pieces(&input, piece), whole, "pieces of {piece}");
    }
}

#[test]
fn pipelined_requests_are_found_one_after_the_other() {
    let input = [GET, b"GET /x HTTP/1.1\r\nHost: a\r\n\r\n", GET].concat();
    assert_eq!(statuses(&input), [Status::Ok, Status::NotFound, Status::Ok]);
}

#[test]
fn a_body_is_no_request() {
    let hidden = b"GET / HTTP/1.1\r\nHost: a\r\n\r\n";
    let head = format!(
        "PUT / HTTP/1.1\r\nHost: a\r\nContent-Length: {}\r\n\r\n",
        hidden.len()
    );
    assert_eq!(
        statuses(&[head.as_bytes(), hidden].concat()),
        [Status::MethodNotAllowed]
    );
}

#[test]
fn connections_stay_or_close_as_version_and_client_say() {
    for (version, fields, then) in [
        ("1.1", "Host: a\r\n", Then::Stay),
        ("1.1", "Host: a\r\nConnection: close\r\n", Then::Close),
        ("1.1", "Host: a\r\nConnection: foo, Close\r\n", Then::Close),
        ("1.1", "Host: a\r\nConnection: keep-alive\r\n", Then::Stay),
        ("1.0", "", Then::Close),
        ("1.0", "Connection: Keep-Alive\r\n", Then::StayAsAsked),
        ("1.0", "Connection: keep-alive, close\r\n", Then::Close),
    ] {
        let input = format!("GET / HTTP/{version}\r\n{fields}\r\n");
        let answer = answers(input.as_bytes())[0];
        assert_eq!((answer.status, answer.then), (Status::Ok, then), "{input}");
        let told = text(answer);
        assert_eq!(told.contains("Connection: close\r\n"), then == Then::Close);
        assert_eq!(
            told.contains("Connection: keep-alive\r\n"),
            then == Then::StayAsAsked
        );
    }
}

#[test]
fn only_the_root_is_there() {
    for (target, status) in [
        ("/", Status::Ok),
        ("/?query", Status::Ok),
        ("http://host:80", Status::Ok),
        ("http://host/", Status::Ok),
        ("http://host?query", Status::Ok),
        ("http://host/x", Status::NotFound),
        ("//", Status::NotFound),
        ("/x", Status::NotFound),
        ("*", Status::NotFound),
        ("/x?http://host/", Status::NotFound),
    ] {
        let input = format!("GET {target} HTTP/1.1\r\nHost: a\r\n\r\n");
        assert_eq!(statuses(input.as_bytes()), [status], "{target}");
    }
}

#[test]
fn methods_that_exist_are_not_allowed_and_others_not_implemented() {
    let allowed = text(answers(b"DELETE / HTTP/1.1\r\nHost: a\r\n\r\n")[0]);
    assert!(allowed.starts_with("HTTP/1.1 405 "));
    assert!(allowed.contains("\r\nAllow: GET, HEAD\r\n"));
    let unknown = answers(b"BREW / HTTP/1.1\r\nHost: a\r\n\r\n")[0];
    assert_eq!(
        (unknown.status, unknown.then),
        (Status::NotImplemented, Then::Stay)
    );
}

#[test]
fn what_makes_no_sense_is_refused_and_ends_the_connection() {
    let bad = Status::BadRequest;
    for (input, status) in [
        ("\u{1}\r\n\r\n", bad),
        ("GET / HTTP/1.1\r\n\r\n", bad),
        ("GET / HTTP/1.1\r\nHost: a\r\nHost: a\r\n\r\n", bad),
        ("GET / HTTP/1.1\r\nHost: a\r\nno colon\r\n\r\n", bad),
        (
            "GET / HTTP/1.1\r\nHost: a\r\nContent-Length: x\r\n\r\n",
            bad,
        ),
        (
            "GET / HTTP/1.1\r\nHost: a\r\nContent-Length: +1\r\n\r\n",
            bad,
        ),
        ("GET / HTTP/1.1\r\nHost: a\r\nContent-Length:\r\n\r\n", bad),
        (
            "GET / HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n",
            bad,
        ),
        (
            "GET / HTTP/1.1\r\nHost: a\r\nContent-Length: 99999999999999999999\r\n\r\n",
            bad,
        ),
        (
            "GET / HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n",
            bad,
        ),
        ("GET / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n", bad),
        (
            "GET / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\nx",
            bad,
        ),
        (
            "GET / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nabc",
            bad,
        ),
        (
            "GET / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: gzip\r\n\r\n",
            Status::NotImplemented,
        ),
        (
            "GET / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: gzip, chunked\r\n\r\n",
            Status::NotImplemented,
        ),
        (
            "GET / HTTP/2.0\r\nHost: a\r\n\r\n",
            Status::VersionNotSupported,
        ),
    ] {
        let answers = answers(input.as_bytes());
        assert_eq!(answers.len(), 1, "{input:?}");
        assert_eq!(
            (answers[0].status, answers[0].then),
            (status, Then::CloseUnread),
            "{input:?}"
        );
    }
}

#[test]
fn a_head_that_is_too_long_is_refused_before_it_ends() {
    let long = "a".repeat(HEAD_LIMIT);
    let many = "A: b\r\n".repeat(FIELDS_LIMIT + 1);
    for (input, status) in [
        (format!("GET /{long}"), Status::UriTooLong),
        (
            format!("GET /{long} HTTP/1.1\r\nHost: a\r\n\r\n"),
            Status::UriTooLong,
        ),
        (
            format!("GET / HTTP/1.1\r\nHost: a\r\nA: {long}"),
            Status::HeaderFieldsTooLarge,
        ),
        (
            format!("GET / HTTP/1.1\r\nHost: a\r\nA: {long}\r\n\r\n"),
            Status::HeaderFieldsTooLarge,
        ),
        (
            format!("GET / HTTP/1.1\r\n{many}\r\n"),
            Status::HeaderFieldsTooLarge,
        ),
        (
            format!(
                "GET / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n0\r\nA: {long}"
            ),
            Status::HeaderFieldsTooLarge,
        ),
    ] {
        assert_eq!(statuses(input.as_bytes()), [status], "{input:.40}");
    }
}

#[test]
fn a_body_that_is_too_long_is_refused_before_it_comes() {
    let head = "POST / HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\n";
    let chunked = format!("{head}Transfer-Encoding: chunked\r\n\r\n");
    let chunk = "a".repeat(0x1000);
    let chunks = format!("1000\r\n{chunk}\r\n").repeat(BODY_LIMIT as usize / 0x1000);
    let too_long = [
        format!("{head}Content-Length: {}\r\n\r\n", BODY_LIMIT + 1),
        format!("{chunked}{:x}\r\n", BODY_LIMIT + 1),
        format!("{chunked}{chunks}1\r\n"),
    ];
    for input in too_long {
        let answers = answers(input.as_bytes());
        assert_eq!(answers.len(), 1);
        assert_eq!(answers[0].status, Status::ContentTooLarge);
        assert_eq!(answers[0].then, Then::CloseUnread);
    }
    let longest = format!("{chunked}{chunks}0\r\n\r\n");
    assert_eq!(statuses(longest.as_bytes()), [Status::MethodNotAllowed]);
}

#[test]
fn a_client_that_expects_100_continue_receives_it() {
    let head = b"POST / HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nContent-Length: 3\r\n\r\n";
    let mut decoder = Decoder::new();
    assert_eq!(decoder.next(head), (head.len(), Found::ContinueAwaited));
    let (used, found) = decoder.next(b"abc");
    assert!(matches!(found, Found::Request(_)) && used == 3);
    assert!(CONTINUE.starts_with(b"HTTP/1.1 100 ") && CONTINUE.ends_with(b"\r\n\r\n"));

    // A client that sends the body at once gets one response.
    let (found, _) = find_in_pieces(&[&head[..], b"abc"].concat(), usize::MAX >> 1);
    assert_eq!(found.len(), 1);
}
