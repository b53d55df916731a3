//! The sessions: which guest a greeting is for, and whether there is a place for one more.
//!
//! A guest keeps its place for some time after its last connection, because it may come back. Others that
//! begin sessions and leave them must not keep new guests out: when no place is free, a guest without a
//! connection gives its place up ([`base::places`]). Without a secret, whatever may connect is a stranger,
//! except root and this program's user.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use base::places::{Full, Peer, Place};
use stream::hello::{Found, Hello, Id, Refusal, Sharing};

use super::strangers::is_trusted;
use super::{Guest, Shared};

impl Shared {
    /// The guest of a greeting, or a new one.
    pub(super) fn find(
        self: &Arc<Self>,
        hello: &Hello,
        peer: Peer,
    ) -> Result<(Arc<Guest>, Found), (Refusal, String)> {
        if self.ended.load(Ordering::Acquire) {
            return Err((Refusal::Ending, "the server ends".to_owned()));
        }
        let named = hello.session != [0; 16];
        if named && let Some(guest) = self.guests.lock().get(&hello.session) {
            return Ok((Arc::clone(guest), Found::Resumed));
        }
        if hello.index > 0 {
            return Err((Refusal::NoSession, "its session is not known here".to_owned()));
        }
        self.may_attach(&self.guests.lock())?;
        let id: Id = base::random::id16();
        let known = self.keys.has_secret() || is_trusted(peer);
        // Not under the lock: another guest may have to be forgotten.
        let weak = Arc::downgrade(self);
        let place = self.place(peer, known, move || {
            weak.upgrade().into_iter().for_each(|shared| shared.displace(&id));
        })?;
        let mut guests = self.guests.lock();
        self.may_attach(&guests)?;
        let number = self.last_guest.fetch_add(1, Ordering::Relaxed) + 1;
        let guest = Guest::new(id, number, self.view(true), Arc::clone(&self.options));
        guest.take_place(place);
        guests.insert(id, Arc::clone(&guest));
        self.log(&format!("guest {number} attached"));
        Ok((guest, if named { Found::Lost } else { Found::New }))
    }

    /// A place for one more guest. `end` ends it.
    pub(super) fn place(
        &self,
        peer: Peer,
        known: bool,
        end: impl FnOnce() + Send + 'static,
    ) -> Result<Place, (Refusal, String)> {
        self.places.enter(peer, known, end).map_err(|Full| {
            let count = self.places.count();
            (Refusal::Full, format!("{count} guests are attached, and no more are allowed"))
        })
    }

    /// Whether one more guest may attach, if there is a place. The error says why not.
    pub(super) fn may_attach(&self, guests: &HashMap<Id, Arc<Guest>>) -> Result<(), (Refusal, String)> {
        if self.ended.load(Ordering::Acquire) {
            return Err((Refusal::Ending, "the server ends".to_owned()));
        }
        let (options, visits) = (&self.options, self.visits.load(Ordering::Acquire));
        if options.sharing != Sharing::One || guests.len() + visits == 0 {
            return Ok(());
        }
        let linger = options.linger.as_secs();
        let comes_back = visits == 0 && guests.values().all(|other| other.alone_since().is_some());
        let what = match comes_back {
            false => "another guest is attached".to_owned(),
            true => format!("another guest was attached less than {linger} s ago and may come back"),
        };
        let say = format!("{what}, and it is served to one at a time: wait, or serve it with --many");
        Err((Refusal::Busy, say))
    }

    /// Forgets a guest whose place another one has now.
    fn displace(&self, id: &Id) {
        let guest = self.guests.lock().get(id).cloned();
        guest.into_iter().for_each(|guest| self.forget(&guest, "did not come back, and gave its place up"));
    }

    pub(super) fn forget(&self, guest: &Arc<Guest>, why: &str) {
        if self.guests.lock().remove(&guest.id()).is_some() {
            guest.end();
            self.log(&format!("guest {} {why}", guest.number));
        }
    }
}
