//! Says what a command waits for, where the kernel or another command decides how long that takes.

use std::sync::mpsc::{RecvTimeoutError, sync_channel};
use std::time::Duration;

use api::error::{Failure, Result};

/// A step that takes so long is told, and again each time as long as [`AGAIN`].
const FIRST: Duration = Duration::from_secs(5);
const AGAIN: Duration = Duration::from_secs(30);

/// Does a step on another thread, and says what it is, if it takes long. The step ends in any case before
/// this returns: an unmount cannot be taken back.
pub fn patiently<T: Send + 'static>(
    say: &dyn Fn(&str),
    step: &str,
    work: impl FnOnce() -> Result<T> + Send + 'static,
) -> Result<T> {
    telling(FIRST, say, step, work)
}

fn telling<T: Send + 'static>(
    first: Duration,
    say: &dyn Fn(&str),
    step: &str,
    work: impl FnOnce() -> Result<T> + Send + 'static,
) -> Result<T> {
    let (tell, told) = sync_channel(1);
    base::thread::spawn("covey-step", move || drop(tell.send(work())))
        .map_err(|error| Failure::io("cannot start a thread", &error))?;
    let began = base::time::monotonic();
    let mut patience = first;
    loop {
        match told.recv_timeout(patience) {
            Ok(done) => return done,
            Err(RecvTimeoutError::Timeout) => {
                say(&format!("Still {step}, after {:.0} s ...", began.elapsed().as_secs_f64()));
                patience = AGAIN;
            }
            Err(RecvTimeoutError::Disconnected) => return Err(Failure::new("io", format!("{step} failed"))),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use super::*;

    #[test]
    fn a_step_that_takes_long_is_told() {
        let said = RefCell::new(Vec::new());
        let say = |line: &str| said.borrow_mut().push(line.to_owned());
        let (go, wait) = sync_channel::<u8>(1);
        let begin = move || wait.recv().map_err(|_| Failure::new("io", "nothing came"));
        let say_and_go = |line: &str| {
            say(line);
            let _ = go.send(7);
        };
        assert_eq!(telling(Duration::from_millis(5), &say_and_go, "unmounting /m", begin).unwrap(), 7);
        assert!(said.borrow()[0].starts_with("Still unmounting /m, after "), "{said:?}");
        said.borrow_mut().clear();
        let failed = patiently(&say, "unmounting /m", || Err::<(), _>(Failure::new("busy", "it is busy")));
        assert!(failed.unwrap_err().code == "busy" && said.borrow().is_empty());
    }
}
