//! Requests between the nodes of a shared volume.

use std::io;

use super::{Serving, bad};
use crate::frame::{Header, KeepAsk, LendAsk, LoanPart, PackAsk, RecallAsk, Returned, Type};

impl Serving {
    /// Takes such a request; the others are not for here.
    pub(super) fn take_shared(&mut self, header: &Header, payload: &[u8]) -> io::Result<()> {
        let request = header.request;
        match header.kind {
            Type::Pack => {
                let ask = PackAsk::decode(payload).map_err(bad)?;
                self.answer_slowly(request, Type::PackPart, move |service| Ok(service.pack(ask)?.encode()));
            }
            Type::Recall => {
                let ask = RecallAsk::decode(payload).map_err(bad)?;
                self.answer_slowly(request, Type::Done, move |service| {
                    service.recall(ask).map(|()| Vec::new())
                });
            }
            Type::Keep => {
                let (ask, from) = (KeepAsk::decode(payload).map_err(bad)?, self.other.node);
                self.answer_slowly(request, Type::Kept, move |service| {
                    Ok(service.keep(from, ask)?.to_le_bytes().to_vec())
                });
            }
            Type::Lend => {
                let ask = LendAsk::decode(payload).map_err(bad)?;
                self.answer_slowly(request, Type::Loan, move |service| {
                    Ok(LoanPart::encode(service.lend(ask)?.as_ref()))
                });
            }
            Type::Returned => {
                self.shared.service.returned(Returned::decode(payload).map_err(bad)?);
                self.answer(Type::Done, request, &[]);
            }
            _ => {}
        }
        Ok(())
    }
}
