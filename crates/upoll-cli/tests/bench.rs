//! `upoll bench` runs to its end, and its JSON has the fields of the tables. Speed is not asserted,
//! because it depends on the machine.

use std::fs::{self, File};
use std::process::Command;

use serde_json::Value;

/// Runs `upoll bench --quick` with these names. Returns its JSON and its output.
fn quick(test: &str, names: &[&str]) -> (Value, String) {
    let json = format!("{}/{test}.json", env!("CARGO_TARGET_TMPDIR"));
    let output = Command::new(env!("CARGO_BIN_EXE_upoll"))
        .args(["bench", "--quick", "--json", &json])
        .args(names)
        .output()
        .unwrap();
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    let report = serde_json::from_reader(File::open(&json).unwrap()).unwrap();
    fs::remove_file(json).unwrap();
    (report, String::from_utf8(output.stdout).unwrap())
}

fn rows<'a>(report: &'a Value, table: &str) -> &'a [Value] {
    report[table].as_array().unwrap()
}

/// Checks that all five figures of a spread are finite and ascending. On a busy machine a short
/// round may end before its threads have run, so the lowest may be zero.
fn assert_spread(spread: &Value) {
    let figure = |key: &str| spread[key].as_f64().unwrap_or(f64::NAN);
    let [p10, median, p90] = ["p10", "median", "p90"].map(figure);
    assert!(p10 >= 0.0 && p90 > 0.0 && p90.is_finite(), "{spread}");
    assert!(p10 <= median && median <= p90, "{spread}");
    assert!(figure("median_low") <= median && median <= figure("median_high"));
}

#[test]
fn a_quick_run_measures_calls_wakes_and_growth() {
    let calls = "eventfd-calls wait-idle wait-ready wait-128 write-wait-read write-wait-edge mod \
                 add-del create poll-1 poll-8 select-1 pipe descriptor-wait descriptor-mod \
                 descriptor-event wake growth-wait growth-add-del \
                 growth-look add-nested";
    let names: Vec<_> = calls.split_whitespace().collect();
    let (report, printed) = quick("calls", &names);
    for name in names {
        assert!(printed.contains(&format!("| {name} ")), "{name}\n{printed}");
    }

    let machine = &report["machine"];
    for key in ["upoll_version", "date", "kernel_release", "cpu_model"] {
        assert!(!machine[key].as_str().unwrap().is_empty(), "{key}");
    }
    assert_eq!(
        machine["kernel_release"].as_str().unwrap(),
        fs::read_to_string("/proc/sys/kernel/osrelease")
            .unwrap()
            .trim()
    );
    let cpus = machine["cpus"].as_array().unwrap();
    assert!(cpus.contains(&report["pinned_to"]));
    assert_eq!(report["quick"], true);
    let warned = printed.contains("built without optimization");
    assert_eq!(warned, cfg!(debug_assertions), "{printed}");

    let batches = report["effort"]["batches"].as_u64().unwrap();
    assert!(batches >= 30);
    for row in rows(&report, "comparisons") {
        for key in ["ratio", "other_nanoseconds", "upoll_nanoseconds"] {
            assert_spread(&row[key]);
        }
        for side in ["other_batches", "upoll_batches"] {
            let figures = row[side]["nanoseconds"].as_array().unwrap();
            assert_eq!(figures.len() as u64, batches, "{row}");
        }
        let name = row["name"].as_str().unwrap();
        if row["against"] == "kernel" && !name.starts_with("wake") && name != "add-nested" {
            let of_descriptors = name.starts_with("descriptor");
            let least = if of_descriptors { 0.5 } else { 6.0 };
            assert!(row["target"].as_f64().unwrap() >= least, "{row}");
        }
        assert_eq!(row["reached"].is_null(), row["target"].is_null(), "{row}");
    }
    for row in rows(&report, "growth") {
        for key in ["ratio", "kernel_growth", "upoll_growth"] {
            assert_spread(&row[key]);
        }
    }

    // The printed tables have all rows of the JSON.
    for table in ["comparisons", "growth"] {
        assert!(!rows(&report, table).is_empty(), "{table}");
        for row in rows(&report, table) {
            let name = row["name"].as_str().unwrap();
            assert!(printed.contains(&format!("| {name} ")), "{name}\n{printed}");
        }
    }
}

#[test]
fn channels_are_measured_against_those_of_other_libraries() {
    let (report, printed) = quick("channels", &["channels"]);
    let channels = rows(&report, "comparisons");
    assert_eq!(channels.len(), 8, "{printed}");
    for row in channels {
        assert_eq!(row["name"], "channels");
        assert_spread(&row["ratio"]);
        assert!(printed.contains(row["against"].as_str().unwrap()));
    }
}

/// Each way is measured or has a reason why not, is compared with upoll's own, and one of all is the fastest.
#[test]
fn peers_do_the_same_work_as_upoll_and_a_way_that_is_skipped_has_a_reason() {
    let (report, printed) = quick("peers", &["peers"]);
    assert_eq!(rows(&report, "comparisons").len(), 0, "not asked for");
    let peers = rows(&report, "peers");
    let over = [1, 8, 64, 1000];
    let operations = [
        ("signal + consume", &over[..1], 5),
        ("send + receive", &over[..1], 5),
        ("signal + wait + consume", &over, 9),
        ("send + wait + receive", &over, 4),
    ];
    let mut seen = 0;
    for (what, sources, ways) in operations {
        for count in sources {
            let of: Vec<_> = peers
                .iter()
                .filter(|row| row["what"] == what && row["sources"] == *count)
                .collect();
            assert_eq!(of.len(), ways, "{what}, {count}");
            seen += of.len();
            let is_fastest = |row: &&&Value| row["figures"]["fastest"] == true;
            assert_eq!(of.iter().filter(is_fastest).count(), 1, "{what}, {count}");
            let own = of[0]["by"].as_str().unwrap();
            assert!(own.starts_with("upoll"), "{own}");
            assert!(of[0]["against"].is_null());
            for row in &of[1..] {
                assert_eq!(row["against"], own);
            }
        }
    }
    assert_eq!(seen, peers.len());
    for row in peers {
        let by = row["by"].as_str().unwrap();
        assert!(printed.contains(&format!("| {by} ")), "{by}\n{printed}");
        if let Some(why) = row["skipped"].as_str() {
            assert!(
                row["figures"].is_null() && row["reached"].is_null(),
                "{row}"
            );
            assert!(printed.contains(&format!("skipped: {why}")), "{printed}");
            continue;
        }
        let figures = &row["figures"];
        assert_spread(&figures["nanoseconds"]);
        assert_eq!(figures["ratio"].is_null(), row["against"].is_null());
        if !row["against"].is_null() {
            assert_spread(&figures["ratio"]);
        }
        // Only peers are judged.
        assert_eq!(row["reached"].is_null(), by.starts_with("upoll"), "{row}");
        assert_eq!(row["target"].is_null(), by.starts_with("upoll"), "{row}");
    }
    let verdict = printed.lines().last().unwrap();
    assert!(verdict.contains("targets reached"), "{verdict}");
}

#[test]
fn calls_by_fd_are_measured_against_those_on_objects() {
    let (report, printed) = quick("fds", &["fds"]);
    let fds = rows(&report, "fds");
    assert_eq!(fds.len(), 10);
    for row in fds {
        assert_spread(&row["object_nanoseconds"]);
        assert_spread(&row["fd_nanoseconds"]);
        assert_eq!(
            row["reached"].is_null(),
            row["target_nanoseconds"].is_null()
        );
        assert!(printed.contains(row["what"].as_str().unwrap()), "{printed}");
    }
}

#[test]
fn workers_take_every_event_once_whichever_way_they_wait() {
    let (report, printed) = quick("workers", &["workers"]);
    assert_eq!(rows(&report, "comparisons").len(), 0, "not asked for");
    let ways = rows(&report, "workers");
    assert_eq!(ways.len(), 4);
    for way in ways {
        let workers = way["workers"].as_u64().unwrap();
        let events = way["load"]["events"].as_u64().unwrap();
        let rounds = way["rounds"].as_array().unwrap();
        assert_eq!(rounds.len() as u64, way["load"]["rounds"].as_u64().unwrap());
        for round in rounds {
            let shares = round["shares"].as_array().unwrap();
            let shares: Vec<u64> = shares.iter().map(|s| s.as_u64().unwrap()).collect();
            assert_eq!(shares.len() as u64, workers);
            assert_eq!(shares.iter().sum::<u64>(), events, "{}", way["way"]);
            let fairness = round["fairness"].as_f64().unwrap();
            assert!((1.0 / workers as f64..=1.0 + f64::EPSILON).contains(&fairness));
        }
        assert_spread(&way["ratio"]);
        assert_spread(&way["milliseconds"]);
        assert_spread(&way["switches_per_event"]);
        assert!(printed.contains(way["way"].as_str().unwrap()));
    }
    let rotating = &ways[3];
    assert!(rotating["goal"]["fairness"].as_f64().unwrap() > 0.99);
    assert!(rotating["reached"].is_boolean());
}

#[test]
fn waits_with_a_limit_are_measured_beside_the_kernels_and_never_end_early() {
    let (report, printed) = quick("timeout", &["timeout"]);
    let timeouts = rows(&report, "timeouts");
    for by in [
        "ppoll",
        "epoll_wait, whole ms",
        "epoll_pwait2",
        "upoll pwait1, objects",
        "upoll pwait1, descriptors",
        "timerfd in epoll_wait",
        "upoll timer in wait",
    ] {
        let of = |row: &&Value| row["by"] == by;
        let asked: Vec<_> = timeouts
            .iter()
            .filter(of)
            .map(|row| ["limit_microseconds", "files"].map(|key| row[key].as_u64().unwrap()))
            .collect();
        let expected = [10, 37, 50, 100, 1000].map(|limit| [15, 85, 200].map(|n| [limit, n]));
        assert_eq!(asked, expected.as_flattened(), "{by}");
        assert!(printed.contains(by), "{printed}");
    }
    for row in timeouts {
        for key in ["ppoll_ratio", "pwait2_ratio", "growth"] {
            assert_spread(&row[key]);
        }
        let is_upoll = row["by"].as_str().unwrap().starts_with("upoll");
        assert_eq!(row["reached"].is_boolean(), is_upoll, "{row}");
        if is_upoll {
            assert_eq!(row["early"], 0, "{row}");
        }
        let percentiles = row["percentiles_nanoseconds"].as_array().unwrap();
        assert_eq!(percentiles.len(), 101);
        assert!(
            percentiles
                .iter()
                .map(|one| one.as_u64().unwrap())
                .is_sorted()
        );
    }
}

#[test]
fn threads_with_a_set_each_share_no_lock_of_the_library() {
    let (report, printed) = quick("close", &["close"]);
    let closes = rows(&report, "threads");
    let own: Vec<_> = closes
        .iter()
        .filter(|row| row["by"] == "upoll" && row["sets"] == "one each")
        .collect();
    let threads: Vec<_> = own.iter().map(|row| &row["threads"]).collect();
    assert!(
        threads.len() >= 3 && threads[..3] == [1, 2, 4],
        "{threads:?}"
    );
    let cpus = report["machine"]["cpus"].as_array().unwrap().len() as u64;
    for row in own {
        assert!(row["locks"]["taken_per_request"].as_f64().unwrap() >= 1.0);
        assert_eq!(row["locks"]["shared_in_all"], 0, "{row}");
        assert_eq!(row["locks"]["contended"], 0.0, "{row}");
        // If the machine cannot measure a row, the row has a note and no verdict.
        let crowded = row["threads"].as_u64().unwrap() > cpus;
        assert!(row["note"].is_string() || !crowded, "{row}");
        assert_eq!(row["reached"].is_null(), row["note"].is_string(), "{row}");
    }
    assert_threads(closes, &printed);
}

/// Checks the rows of threads that make requests, which the tables show.
fn assert_threads(rows: &[Value], printed: &str) {
    for row in rows {
        for key in ["requests_per_second", "growth", "growth_per_core", "ratio"] {
            assert_spread(&row[key]);
        }
        for key in ["name", "work", "by", "sets"] {
            let word = row[key].as_str().unwrap();
            assert!(printed.contains(&format!("| {word} ")), "{printed}");
        }
        assert_eq!(row["locks"].is_null(), row["by"] == "kernel", "{row}");
        let threads = row["threads"].as_f64().unwrap();
        let had = row["threads_with_a_core"]["median"].as_f64().unwrap();
        assert!(had > 0.0 && had <= threads, "{row}");
    }
}

#[test]
fn threads_that_share_a_set_are_measured_with_each_kind_of_work() {
    let (report, printed) = quick("shared", &["close", "shared"]);
    let shared: Vec<_> = rows(&report, "threads")
        .iter()
        .filter(|row| row["sets"] == "one for all")
        .cloned()
        .collect();
    assert_threads(&shared, &printed);
    for (name, work) in [
        ("close", "a connection per request"),
        ("shared", "oneshot"),
        ("shared", "edge"),
    ] {
        for by in ["kernel", "upoll"] {
            let of = |row: &&Value| row["name"] == name && row["work"] == work && row["by"] == by;
            let of: Vec<_> = shared.iter().filter(of).collect();
            let threads: Vec<_> = of.iter().map(|row| &row["threads"]).collect();
            assert_eq!(threads, [1, 2, 4, 8, 16], "{work}, {by}");
            for row in of {
                // More threads than CPUs are judged, too, if other programs left them the CPUs.
                let judged = by == "upoll" && (name == "shared" || row["threads"] != 1);
                let free = !row["note"]
                    .as_str()
                    .unwrap_or("")
                    .contains("other programs");
                assert_eq!(row["reached"].is_boolean(), judged && free, "{row}");
                assert_eq!(row["goal"].is_object(), judged && free, "{row}");
            }
        }
    }
}

#[test]
fn poll_and_select_are_measured_on_the_stack_on_the_heap_and_in_the_kernel() {
    let (report, printed) = quick("poll", &["poll"]);
    let polls = rows(&report, "polls");
    for call in ["poll", "select"] {
        for what in [
            "objects, limit 0",
            "objects, registers with each",
            "descriptors, limit 0",
        ] {
            let of = |row: &&Value| row["call"] == call && row["what"] == what;
            let sizes: Vec<_> = polls.iter().filter(of).map(|row| &row["files"]).collect();
            assert_eq!(sizes, [1, 8, 30, 100, 1000], "{call}, {what}");
            assert!(printed.contains(what), "{printed}");
        }
    }
    for row in polls {
        for key in ["upoll_nanoseconds", "heap_nanoseconds", "gain"] {
            assert_spread(&row[key]);
        }
        let has_kernel = row["what"] != "objects, registers with each";
        assert_eq!(row["kernel_nanoseconds"].is_object(), has_kernel, "{row}");
        assert_eq!(row["ratio"].is_object(), has_kernel, "{row}");
        // A call with a context has registered already.
        assert_eq!(row["context_nanoseconds"].is_object(), has_kernel, "{row}");
        assert_eq!(row["context_gain"].is_object(), has_kernel, "{row}");
        if row["files"].as_u64() > Some(30) {
            assert!(row["gain_target"].is_null(), "{row}");
        }
    }
}

/// The server, or the library that a run needs, may be missing: then the report has the reason.
#[test]
fn servers_are_warmed_as_asked_or_left_out_for_a_reason() {
    let arguments = ["fair", "--servers", "lighttpd", "--warm-up", "5"];
    let (report, printed) = quick("fair", &arguments);
    let fair = &report["fair"];
    assert_eq!(fair["warm_up"], 5);
    let warmed = "has answered at least 5 requests";
    assert!(printed.contains(warmed), "{printed}");
    let served = rows(fair, "served");
    for row in served {
        assert!(row["warmed_by"].is_u64(), "{row}");
    }
    for left_out in rows(fair, "left_out") {
        let why = left_out["why"].as_str().unwrap();
        assert!(!why.is_empty() && printed.contains(why), "{printed}");
    }
    assert_ne!(served.is_empty(), rows(fair, "left_out").is_empty());
}

#[test]
fn help_lists_every_name_in_its_group() {
    let bench = |argument| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_upoll"));
        command.args(["bench", argument]).output().unwrap()
    };
    let help = String::from_utf8(bench("--help").stdout).unwrap();
    let (arguments, _) = help.split_once("\n\nOptions:").unwrap();
    let groups = arguments.split("\n          - ").skip(1);
    let groups: Vec<_> = groups.filter_map(|group| group.split_once(":\n")).collect();
    assert_eq!(groups.len(), 13, "{help}");
    // An unknown name is refused with a list of the known ones.
    let refused = String::from_utf8(bench("no-such-name").stderr).unwrap();
    let (_, names) = refused.split_once("[possible values: ").unwrap();
    let (names, _) = names.split_once(']').unwrap();
    for name in names.split(", ") {
        let has = |group: &&(&str, &str)| group.1.split_whitespace().any(|word| word == name);
        assert_eq!(groups.iter().filter(has).count(), 1, "{name}\n{help}");
    }
}
