//! Third-party servers with workers that share a listening socket.

use std::ffi::OsString;
use std::fs;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use rustix::process::{Pid, Signal, kill_process_group};
use tempfile::TempDir;
use upoll_fair_state::Counts;

use super::load;
use super::processes::Usage;

/// A kind of server.
pub(super) struct Kind {
    pub(super) name: &'static str,
    /// The call by which its workers wait.
    pub(super) waits_by: &'static str,
    /// The program and its arguments. `{port}`, `{workers}` and `{folder}` stand for those of the [`Place`].
    command: &'static str,
    /// A module that the Debian package of the server may lack.
    needs: Option<&'static str>,
    pub(super) shares: Shares,
    /// True if the server rotates its workers by itself.
    pub(super) rotates: bool,
}

/// The way to find the worker of a response.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Shares {
    /// By the number in the response.
    Answers,
    /// By the bytes that each process has written: all responses have the same length.
    Written,
}

/// The environment of a server: port, folder and number of workers.
pub(super) struct Place {
    folder: TempDir,
    port: u16,
    workers: usize,
}

/// Debian's interpreter, which finds Debian's modules.
const PYTHON: &str = "/usr/bin/python3";

const fn kind(name: &'static str, waits_by: &'static str, command: &'static str) -> Kind {
    Kind {
        name,
        waits_by,
        command,
        needs: None,
        shares: Shares::Answers,
        rotates: false,
    }
}

pub(super) const KINDS: [Kind; 12] = [
    kind(
        "gunicorn-sync",
        "select",
        "gunicorn --bind 127.0.0.1:{port} --workers {workers} --worker-class sync \
         --log-level error app:wsgi",
    ),
    kind(
        "gunicorn-gthread",
        "epoll",
        "gunicorn --bind 127.0.0.1:{port} --workers {workers} --worker-class gthread \
         --log-level error app:wsgi --threads 4",
    ),
    Kind {
        needs: Some("gevent"),
        ..kind(
            "gunicorn-gevent",
            "epoll",
            "gunicorn --bind 127.0.0.1:{port} --workers {workers} --worker-class gevent \
             --log-level error app:wsgi",
        )
    },
    Kind {
        needs: Some("uvloop"),
        ..kind(
            "uvicorn",
            "epoll",
            "uvicorn --port {port} --workers {workers} --loop uvloop \
             --log-level error --no-access-log app:asgi",
        )
    },
    Kind {
        needs: Some("tornado"),
        ..kind(
            "tornado",
            "epoll",
            "/usr/bin/python3 tornado_app.py {port} {workers}",
        )
    },
    kind(
        "uwsgi",
        "epoll",
        "uwsgi --plugin python3 --http-socket 127.0.0.1:{port} --processes {workers} --master \
         --die-on-term --wsgi-file app.py --callable wsgi --disable-logging",
    ),
    kind(
        "unicorn",
        "poll",
        "unicorn -l 127.0.0.1:{port} -E production -c unicorn.rb",
    ),
    kind(
        "puma",
        "poll",
        "puma --bind tcp://127.0.0.1:{port} --workers {workers} --threads 1:1 \
         --environment production --quiet",
    ),
    kind("node-cluster", "epoll", "node cluster.js {port} {workers}"),
    kind("haproxy", "epoll, threads", "haproxy -db -f haproxy.cfg"),
    Kind {
        shares: Shares::Written,
        ..kind("lighttpd", "epoll", "lighttpd -D -f lighttpd.conf")
    },
    Kind {
        rotates: true,
        ..kind(
            "nginx",
            "epoll, rotates by itself",
            "nginx -p {folder} -c nginx.conf -e stderr",
        )
    },
];

impl Place {
    /// Creates a folder with the applications and settings.
    fn new(workers: usize) -> Result<Place> {
        // The kernel does not reuse the port for the next caller.
        let port = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?
            .local_addr()?
            .port();
        let folder = tempfile::Builder::new()
            .prefix("upoll-bench-fair-")
            .tempdir()
            .context("a folder for the server")?;
        let place = Place {
            folder,
            port,
            workers,
        };
        let folder = place.folder.path().display();
        for (name, text) in [
            ("app.py", include_str!("apps/app.py").to_owned()),
            (
                "tornado_app.py",
                include_str!("apps/tornado_app.py").to_owned(),
            ),
            ("cluster.js", include_str!("apps/cluster.js").to_owned()),
            ("config.ru", include_str!("apps/config.ru").to_owned()),
            ("unicorn.rb", format!("worker_processes {workers}\n")),
            // lighttpd serves a file.
            ("index.html", "1\n".to_owned()),
            (
                "haproxy.cfg",
                format!(
                    "global\n  nbthread {workers}\n  tune.listener.multi-queue off\n\
                     defaults\n  mode http\n  timeout client 10s\n  timeout connect 10s\n  timeout server 10s\n\
                     frontend f\n  bind 127.0.0.1:{port}\n  option httpclose\n  \
                     http-request return status 200 content-type text/plain lf-string \"%[thread]\"\n"
                ),
            ),
            (
                "lighttpd.conf",
                format!(
                    "server.document-root = \"{folder}\"\nserver.port = {port}\n\
                     server.bind = \"127.0.0.1\"\nserver.max-worker = {workers}\n\
                     index-file.names = ( \"index.html\" )\n"
                ),
            ),
            (
                "nginx.conf",
                format!(
                    "daemon off;\nworker_processes {workers};\npid {folder}/nginx.pid;\n\
                     events {{ }}\nhttp {{ access_log off; \
                     server {{ listen 127.0.0.1:{port}; location / {{ return 200 $pid; }} }} }}\n"
                ),
            ),
        ] {
            let path = place.folder.path().join(name);
            fs::write(&path, text).with_context(|| path.display().to_string())?;
        }
        Ok(place)
    }
}

/// The order in which a connection wakes workers.
#[derive(Clone, Copy)]
pub(super) enum Way<'a> {
    /// The kernel's order, without the library.
    Stock,
    /// The kernel's order, with the library, which counts.
    Observed,
    Exclusive,
    /// Turns, by this policy.
    Fair(&'a str),
}

impl<'a> Way<'a> {
    fn policy(self) -> Option<&'a str> {
        match self {
            Way::Stock => None,
            Way::Observed => Some("observe"),
            Way::Exclusive => Some("exclusive"),
            Way::Fair(policy) => Some(policy),
        }
    }
}

/// Returns the search path for programs. It includes the folders of the administrator, where some
/// servers are.
fn path() -> Result<OsString> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let folders = std::env::split_paths(&path).chain(["/usr/sbin".into()]);
    Ok(std::env::join_paths(folders)?)
}

/// A running server.
pub(super) struct Server {
    process: Child,
    place: Place,
}

impl Kind {
    fn program(&self) -> &'static str {
        self.command.split(' ').next().unwrap_or_default()
    }

    /// Returns the arguments of the program.
    fn arguments(&self, place: &Place) -> impl Iterator<Item = String> {
        let folder = place.folder.path().display().to_string();
        let (port, workers) = (place.port.to_string(), place.workers.to_string());
        self.command.split(' ').skip(1).map(move |word| {
            word.replace("{port}", &port)
                .replace("{workers}", &workers)
                .replace("{folder}", &folder)
        })
    }

    /// Returns the reason why the server cannot be started here, if there is one.
    pub(super) fn obstacle(&self) -> Option<String> {
        let program = self.program();
        if which::which_in(program, path().ok(), ".").is_err() {
            return Some(format!("{program} is not installed"));
        }
        let module = self.needs?;
        let mut python = Command::new(PYTHON);
        python
            .args(["-c", &format!("import {module}")])
            .stderr(Stdio::null());
        let is_there = python.status().is_ok_and(|status| status.success());
        (!is_there).then(|| format!("{PYTHON} has no module {module}"))
    }

    /// Starts the server, and waits until all of its workers wait.
    pub(super) fn start(&self, workers: usize, way: Way<'_>) -> Result<Server> {
        let place = Place::new(workers)?;
        let mut command = match way.policy() {
            None => Command::new(self.program()),
            Some(policy) => {
                let mut command = Command::new(std::env::current_exe()?);
                command.args(["run", &format!("--fair={policy}"), "--", self.program()]);
                command
            }
        };
        command
            .args(self.arguments(&place))
            .current_dir(place.folder.path())
            .env("PATH", path()?)
            .env("PYTHONDONTWRITEBYTECODE", "1")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            // Its own group, so that a signal reaches workers whose parent has died.
            .process_group(0);
        let process = command.spawn().with_context(|| self.program().to_owned())?;
        let mut server = Server { process, place };
        server
            .settle()
            .with_context(|| format!("{} with {workers} workers", self.name))?;
        Ok(server)
    }
}

impl Server {
    pub(super) fn address(&self) -> SocketAddr {
        (Ipv4Addr::LOCALHOST, self.place.port).into()
    }

    pub(super) fn usage(&self) -> Usage {
        Usage::of(self.process.id())
    }

    /// Returns the library's counts. Without the library there are none.
    pub(super) fn counts(&self) -> Vec<Counts> {
        let prefix = format!("upoll-fair-{}-", self.process.id());
        let files = fs::read_dir("/dev/shm").into_iter().flatten().flatten();
        let mut files =
            files.filter(|file| file.file_name().to_string_lossy().starts_with(&prefix));
        let bytes = files.next().and_then(|file| fs::read(file.path()).ok());
        bytes.map_or_else(Vec::new, |bytes| Counts::in_file(&bytes))
    }

    /// Waits until the server responds and is idle, with all workers started.
    fn settle(&mut self) -> Result<()> {
        const STARTS_WITHIN: Duration = Duration::from_secs(60);
        const IDLE: Duration = Duration::from_millis(300);
        let begun = Instant::now();
        while load::exchange(self.address()).is_err() {
            if let Some(status) = self.process.try_wait()? {
                bail!("ended at its start: {status}");
            }
            if begun.elapsed() > STARTS_WITHIN {
                bail!("does not answer");
            }
            thread::sleep(Duration::from_millis(20));
        }
        let mut before = self.usage();
        loop {
            thread::sleep(IDLE);
            let now = self.usage();
            let used = now.since(&before);
            let is_idle = Duration::from_nanos(used.nanoseconds) < IDLE / 30;
            if is_idle && now.processes() == before.processes() || begun.elapsed() > STARTS_WITHIN {
                return Ok(());
            }
            before = now;
        }
    }

    fn signal(&self, signal: Signal) {
        if let Some(group) = i32::try_from(self.process.id())
            .ok()
            .and_then(Pid::from_raw)
        {
            // The group may have ended already.
            let _ = kill_process_group(group, signal);
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.signal(Signal::TERM);
        let begun = Instant::now();
        while matches!(self.process.try_wait(), Ok(None))
            && begun.elapsed() < Duration::from_secs(3)
        {
            thread::sleep(Duration::from_millis(10));
        }
        self.signal(Signal::KILL);
        let _ = self.process.wait();
    }
}
