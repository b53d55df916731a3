//! A node's program in the sort: a process of its own, in the node's network namespace. It gets one step a
//! line on its standard input and answers each with one line of JSON. It sees data only through its mounts.

use std::io::{BufRead, BufReader, Write};
use std::path::PathBuf;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use base::time::monotonic;
use nets::Port;
use serde_json::{Value, json};

use super::phases::Share;
use super::records::Form;
use crate::Result;

/// Works on one node of a sort (used by the bench itself)
#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    /// The form of records
    #[arg(long, value_enum)]
    form: Form,
    /// This node, from 0 on
    #[arg(long)]
    node: usize,
    /// Records of each node
    #[arg(long)]
    records: u64,
    /// Parts that each node sorts
    #[arg(long)]
    parts: usize,
    /// The node's own volume
    #[arg(long)]
    mnt: PathBuf,
    /// The folder `shuffle` of each node
    #[arg(long, value_delimiter = ',')]
    from: Vec<PathBuf>,
}

/// Does steps until standard input ends.
///
/// # Errors
/// The pipe to the bench broke. The failure of a step is an answer.
pub fn run(args: &Args) -> Result<()> {
    let Args { form, node, records, parts, mnt, from } = args.clone();
    let share = Share { form, node, nodes: from.len(), records, parts, mnt, from };
    for line in std::io::stdin().lock().lines() {
        let line = line?;
        let begun = monotonic();
        let done = match line.as_str() {
            "generate" => share.generate(),
            "partition" => share.partition(),
            "sort" => share.sort(),
            "summary" => share.summary(),
            other => Err(format!("there is no step {other}").into()),
        };
        let answer = match done {
            Ok(value) => json!({ "done": value, "seconds": begun.elapsed().as_secs_f64() }),
            Err(error) => json!({ "failed": error.to_string() }),
        };
        let mut out = std::io::stdout().lock();
        writeln!(out, "{answer}")?;
        out.flush()?;
    }
    Ok(())
}

/// A worker that runs. When it is dropped, its process ends.
pub struct Worker {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl Worker {
    /// Starts the worker of a share in its node's namespace.
    ///
    /// # Errors
    /// The process cannot be started.
    pub fn start(port: &Port, share: &Share) -> Result<Worker> {
        let mut command = Command::new(std::env::current_exe()?);
        let form = match share.form {
            Form::Plain => "plain",
            Form::Gensort => "gensort",
        };
        command.args(["sort-worker", "--form", form]);
        command.args(["--node", &share.node.to_string(), "--records", &share.records.to_string()]);
        command.args(["--parts", &share.parts.to_string(), "--mnt"]).arg(&share.mnt).arg("--from");
        let from: Vec<_> = share.from.iter().map(|path| path.as_os_str()).collect();
        command.arg(from.join(",".as_ref()));
        let mut command = port.wrap(&command);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let (input, output) = (child.stdin.take(), child.stdout.take());
        let input = input.ok_or("a worker has no standard input")?;
        let output = BufReader::new(output.ok_or("a worker has no standard output")?);
        Ok(Worker { child, input, output })
    }

    /// Sends a step. [`Worker::answer`] waits for its end.
    ///
    /// # Errors
    /// The worker ended.
    pub fn begin(&mut self, step: &str) -> Result<()> {
        Ok(writeln!(self.input, "{step}")?)
    }

    /// Waits for the end of the step. Returns what the step returned, and how many seconds it took.
    ///
    /// # Errors
    /// The step failed, or the worker ended.
    pub fn answer(&mut self) -> Result<(Value, f64)> {
        let mut line = String::new();
        self.output.read_line(&mut line)?;
        let mut answer: Value =
            serde_json::from_str(&line).map_err(|_| "a worker ended before its answer")?;
        match answer.get("failed").and_then(Value::as_str) {
            Some(why) => Err(why.into()),
            None => Ok((answer["done"].take(), answer["seconds"].as_f64().unwrap_or_default())),
        }
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        // It may have ended already.
        self.child.kill().ok();
        self.child.wait().ok();
    }
}
