//! The command's side of an import or an export: progress on the terminal, Ctrl-C, and the words about the
//! result. The work is in [`archive`].

use std::time::Duration;

use api::answers::Skipped;
use api::error::{Failure, Result};
use api::text::count;
use archive::transfer::{Event, Stop, Summary, Watch};
use node::signals;

use crate::term::{Progress, Term, files_and_rates};

/// How long work that is to stop may take to see it.
const GRACE: Duration = Duration::from_secs(2);

/// What a person sees of a transfer and can do to it meanwhile.
#[derive(Clone, Copy, Debug)]
pub struct Seen<'a> {
    /// The name beside the progress.
    pub label: &'a str,
    /// The terminal.
    pub term: Term,
    /// How it is stopped. None: the first signal ends the program.
    pub stop: Option<&'a Stop>,
}

impl Seen<'_> {
    /// Runs a transfer and shows its progress.
    pub fn watch<T>(self, transfer: impl FnOnce(Watch<'_>) -> Result<T>) -> Result<T> {
        let mut progress = self.term.progress(self.label);
        let outcome = transfer(Watch { stop: self.stop, event: &mut |event| show(&mut progress, event) });
        progress.done();
        outcome
    }
}

fn show(progress: &mut Progress, event: Event) {
    match event {
        Event::Copying { at, expected, taken } => {
            if let Some(expected) = expected {
                progress.total(expected);
            }
            progress.set_files(at, taken.files, taken.bytes);
        }
        Event::Syncing => progress.set(u64::MAX, |_| "making it durable ...".to_owned()),
    }
}

/// Takes the signals from now on: the first one asks the transfer to stop, the second one ends the program.
/// Threads started before this are ended by signals as before.
pub fn stop_by_signal(term: Term) -> Result<Stop> {
    let said = "stopping: what has arrived is completed. Ctrl-C again ends it at once";
    stopped_by_signal(term, said, None)
}

/// Takes the signals from now on, for work of which nothing is kept that is not complete. If a store does not
/// answer, the work does not see that it is to stop. So the first signal ends the program too, after
/// [`GRACE`]. What stays is what a kill leaves.
pub fn stop_or_end_by_signal(term: Term) -> Result<Stop> {
    let said = "stopping: a tree is published whole or not at all. Ctrl-C again ends it at once";
    stopped_by_signal(term, said, Some(GRACE))
}

fn stopped_by_signal(term: Term, said: &'static str, grace: Option<Duration>) -> Result<Stop> {
    signals::block();
    let stop = Stop::default();
    let asked = stop.clone();
    let work = move || {
        signals::next();
        asked.ask();
        term.say(said);
        if !signals::next_within(grace) {
            term.say("ended: the work did not stop, most likely because a store does not answer");
        }
        std::process::exit(130);
    };
    base::thread::spawn("covey-signals", work)
        .map_err(|error| Failure::io("cannot start a thread", &error))?;
    Ok(stop)
}

/// Names the first items that were left out. Returns whether there are any.
pub fn say_left_out(skipped: &[Skipped], term: Term) -> bool {
    const SHOWN: usize = 10;
    for skipped in skipped.iter().take(SHOWN) {
        term.say(format_args!("left out: {} ({})", skipped.path, skipped.why));
    }
    if skipped.len() > SHOWN {
        term.say(format_args!("left out: {} more; --json lists them", skipped.len() - SHOWN));
    }
    !skipped.is_empty()
}

/// The result for a person.
pub fn in_words(verb: &str, summary: &Summary) -> String {
    let Summary { files, bytes, seconds, already, skipped } = summary;
    let took = Duration::from_secs_f64(*seconds);
    let rest = if skipped.is_empty() { String::new() } else { format!("; {} left out", skipped.len()) };
    let already =
        if *already > 0 { format!("; {} were there already", count(*already)) } else { String::new() };
    format!("{verb} {} in {seconds:.1} s{already}{rest}", files_and_rates(*files, *bytes, took))
}
