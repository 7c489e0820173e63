//! A tokio program that `ci/preload` runs natively and under the library. An echo server and its
//! clients run on several workers. Other threads wake them, which mio does by an eventfd that is
//! watched edge-triggered. Meanwhile the program starts other programs.

use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;

const CLIENTS: u64 = 32;
const MESSAGES: u64 = 200;
const WAKES: u64 = 2000;
const PROGRAMS: u64 = 5;

type Outcome = Result<(), Box<dyn std::error::Error + Send + Sync>>;

async fn serve(listener: TcpListener) -> Outcome {
    loop {
        let (mut stream, _) = listener.accept().await?;
        tokio::spawn(async move {
            let (mut from, mut to) = stream.split();
            tokio::io::copy(&mut from, &mut to).await
        });
    }
}

async fn client(address: std::net::SocketAddr, name: u64) -> Outcome {
    let mut stream = TcpStream::connect(address).await?;
    for message in 0..MESSAGES {
        let sent = (name << 32 | message).to_le_bytes();
        let mut echoed = [0; 8];
        stream.write_all(&sent).await?;
        stream.read_exact(&mut echoed).await?;
        assert_eq!(echoed, sent, "what was sent comes back");
    }
    Ok(())
}

/// Each number comes from a thread that is none of the runtime's, and goes back to it.
async fn heed_a_thread() -> Outcome {
    let (send, mut numbers) = mpsc::unbounded_channel();
    let (answer, answers) = std::sync::mpsc::channel();
    let thread = std::thread::spawn(move || {
        for number in 0..WAKES {
            send.send(number).expect("the task listens");
            let answered = answers.recv_timeout(Duration::from_secs(30));
            assert_eq!(answered, Ok(number), "each number is answered");
        }
    });
    while let Some(number) = numbers.recv().await {
        answer.send(number)?;
    }
    thread.join().expect("the thread got its answers");
    Ok(())
}

async fn start_programs() -> Outcome {
    for number in 0..PROGRAMS {
        let mut command = tokio::process::Command::new("echo");
        let output = command.arg(number.to_string()).output().await?;
        assert!(output.status.success());
        assert_eq!(String::from_utf8(output.stdout)?.trim(), number.to_string());
    }
    Ok(())
}

async fn all() -> Outcome {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let address = listener.local_addr()?;
    let server = tokio::spawn(serve(listener));
    heed_a_thread().await?;
    let clients: Vec<_> = (0..CLIENTS)
        .map(|name| tokio::spawn(client(address, name)))
        .collect();
    for client in clients {
        client.await??;
    }
    // Programs are started by fork or spawn: from here on the kernel may have the runtime's set.
    start_programs().await?;
    heed_a_thread().await?;
    client(address, CLIENTS).await?;
    server.abort();
    Ok(())
}

/// On the runtime, not next to it: there a wake would be none of its driver's business.
fn run_on(runtime: std::io::Result<tokio::runtime::Runtime>) -> Outcome {
    let limit = Duration::from_secs(60);
    runtime?.block_on(async { tokio::time::timeout(limit, tokio::spawn(all())).await })??
}

fn main() -> Outcome {
    use tokio::runtime::Builder;
    run_on(Builder::new_current_thread().enable_all().build())?;
    run_on(
        Builder::new_multi_thread()
            .worker_threads(2)
            .enable_all()
            .build(),
    )
}
