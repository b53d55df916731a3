//! The service Controller: volumes are made, listed, grown and removed.
//!
//! A volume is found by its id alone ([`crate::names`]). The records in the state folder are for lists, and
//! to see that one name is asked for with other parameters. Without them, volumes are still found and
//! deleted.

mod capacity;
mod exclusive;
mod shared;

use std::path::Path;

use tonic::{Code, Status};

use crate::Driver;
use crate::class::{Class, wanted};
use crate::mount::Source;
use crate::names::{self, Id, hashed, part_of};
use crate::proto::controller::{
    Capabilities, Confirmed, CreateVolumeRequest, CreateVolumeResponse, DeleteVolumeRequest, ExpandRequest,
    ExpandResponse, ListVolumesRequest, ListVolumesResponse, ValidateRequest, ValidateResponse, VolumeEntry,
    can,
};
use crate::proto::identity::Empty;
use crate::proto::{Capability, Texts, TopologyRequirement, Volume, VolumeCapability, VolumeContentSource};
use crate::records::{Made, Staged};
use crate::refuse::{self, Answer};
use crate::secrets::Secrets;
use capacity::Size;

/// The longest name of a volume, in bytes.
const NAME_MAX: usize = 1024;

impl Driver {
    pub(crate) fn controller_capabilities(&self, _: Empty) -> Answer<Capabilities> {
        let all = [can::CREATE_DELETE_VOLUME, can::LIST_VOLUMES, can::CLONE_VOLUME, can::EXPAND_VOLUME];
        Ok(Capabilities { capabilities: all.map(Capability::of).to_vec() })
    }

    pub(crate) fn create_volume(&self, call: CreateVolumeRequest) -> Answer<CreateVolumeResponse> {
        if call.name.is_empty() || call.name.len() > NAME_MAX {
            return Err(refuse::invalid(
                "the call has no name for the volume, or one that is too long",
                "send the field name",
            ));
        }
        if call.volume_capabilities.is_empty() {
            return Err(refuse::invalid("the call has no volume_capabilities", "send at least one"));
        }
        let secrets = Secrets::take(call.secrets)?;
        let class = Class::of(&call.parameters)?;
        let kind = kind_of(&class);
        call.volume_capabilities.iter().try_for_each(|one| wanted(Some(one), kind).map(drop))?;
        let size = Size::of(call.capacity_range.as_ref())?;
        let from = self.content(call.volume_content_source.as_ref(), &class)?;
        self.check_topology(&class, call.accessibility_requirements.as_ref())?;
        let id = Some(self.id_of(&class, &part_of(&call.name))).filter(|id| !id.is_long());
        let id = id.unwrap_or_else(|| self.id_of(&class, &hashed(&call.name)));
        let text = id.text()?;
        let _alone = self.alone(&text)?;
        let parameters = call.parameters;
        let made =
            self.made.all::<Made>()?.into_iter().map(|(_, made)| made).find(|made| made.name == call.name);
        if let Some(made) = made {
            let is_same = made.id == text && made.parameters == parameters && made.from == from;
            if !is_same || !size.is_met_by(made.capacity) {
                return Err(taken(&call.name));
            }
            return self.answer(&made, call.volume_content_source);
        }
        let (capacity, context) = match (&class, &id) {
            (Class::Shared { address, mode, .. }, Id::Shared { folder, name, .. }) => {
                let held = self.mounts.hold(&Source::shared(address, ""), &secrets)?.for_controller();
                let new = shared::New { folder, name, mode: *mode, size, from: from.as_deref() };
                let capacity = shared::make(held.place(), &new)?;
                let pairs = [("volume", address.clone()), ("path", format!("{folder}/{name}"))];
                (capacity, context(&pairs))
            }
            (Class::Exclusive { mode }, Id::Exclusive { name, .. }) => (
                self.make_exclusive(name, *mode, size, from.as_deref())?,
                context(&[("exclusive", name.clone())]),
            ),
            _ => (0, crate::class::own(&parameters)),
        };
        if !size.is_met_by(capacity) {
            return Err(taken(&call.name));
        }
        let made = Made { name: call.name, id: text, capacity, context, parameters, from };
        self.made.put(&made.id, &made)?;
        self.answer(&made, call.volume_content_source)
    }

    fn id_of(&self, class: &Class, part: &str) -> Id {
        let name = part.to_owned();
        match class {
            Class::Tree(_) => Id::Tree { name },
            Class::Shared { address, folder, .. } => {
                Id::Shared { folder: folder.clone(), name, address: address.clone() }
            }
            Class::Exclusive { .. } => Id::Exclusive { name, node: self.options.node.clone() },
        }
    }

    /// The volume that a new one begins as a copy of: its folder.
    fn content(&self, source: Option<&VolumeContentSource>, class: &Class) -> Answer<Option<String>> {
        let Some(source) = source else { return Ok(None) };
        let Some(from) = &source.volume else {
            return Err(refuse::invalid(
                "there are no snapshots here",
                "clone a volume: dataSource of the kind PersistentVolumeClaim",
            ));
        };
        names::check_id(&from.volume_id)?;
        match (Id::parse(&from.volume_id), class) {
            (Some(Id::Shared { folder, name, address }), Class::Shared { address: new, .. })
                if address == *new =>
            {
                Ok(Some(format!("{folder}/{name}")))
            }
            (Some(Id::Exclusive { name, node }), Class::Exclusive { .. }) if node == self.options.node => {
                Ok(Some(name))
            }
            (Some(_), _) => Err(refuse::invalid(
                "only a volume of the same shared volume, or of the same node, can be cloned",
                "use a class with the same parameters, or copy the files",
            )),
            (None, _) => Err(refuse::not_found(
                format!("there is no volume {}", from.volume_id),
                "check the dataSource",
            )),
        }
    }

    fn check_topology(&self, class: &Class, wish: Option<&TopologyRequirement>) -> Answer<()> {
        let Class::Exclusive { .. } = class else { return Ok(()) };
        self.exclusive("any")?;
        let Some(wish) = wish.filter(|wish| !wish.requisite.is_empty()) else { return Ok(()) };
        let here =
            |segments: &Texts| segments.get(&self.segment()).is_none_or(|node| *node == self.options.node);
        if wish.requisite.iter().any(|topology| here(&topology.segments)) {
            return Ok(());
        }
        let what = format!(
            "the volume cannot be on the node {}; next: use the driver of another node",
            self.options.node
        );
        Err(Status::resource_exhausted(what))
    }

    fn answer(
        &self,
        made: &Made,
        content_source: Option<VolumeContentSource>,
    ) -> Answer<CreateVolumeResponse> {
        let volume = Volume { content_source, ..self.volume(made) };
        Ok(CreateVolumeResponse { volume: Some(volume) })
    }

    fn volume(&self, made: &Made) -> Volume {
        let is_exclusive = matches!(Id::parse(&made.id), Some(Id::Exclusive { .. }));
        Volume {
            capacity_bytes: made.capacity,
            volume_id: made.id.clone(),
            volume_context: made.context.clone(),
            content_source: None,
            accessible_topology: self.topology().filter(|_| is_exclusive).into_iter().collect(),
        }
    }

    pub(crate) fn delete_volume(&self, call: DeleteVolumeRequest) -> Answer<Empty> {
        names::check_id(&call.volume_id)?;
        let secrets = Secrets::take(call.secrets)?;
        let _alone = self.alone(&call.volume_id)?;
        // What is no id of ours, was never made here.
        let Some(id) = Id::parse(&call.volume_id) else { return Ok(Empty {}) };
        if let Some(staged) = self.staged.find::<Staged>(&call.volume_id)? {
            let what = format!("the volume {} is staged at {}", staged.id, staged.staging.display());
            return Err(refuse::precondition(what, "end the pods that use it"));
        }
        match &id {
            Id::Shared { folder, name, address } => {
                let held = self.mounts.hold(&Source::shared(address, ""), &secrets)?.for_controller();
                shared::remove(held.place(), folder, name)?;
            }
            Id::Exclusive { name, node } => self.remove_exclusive(name, node)?,
            Id::Tree { .. } => {}
        }
        self.made.remove(&call.volume_id)?;
        Ok(Empty {})
    }

    pub(crate) fn validate(&self, call: ValidateRequest) -> Answer<ValidateResponse> {
        names::check_id(&call.volume_id)?;
        if call.volume_capabilities.is_empty() {
            return Err(refuse::invalid("the call has no volume_capabilities", "send at least one"));
        }
        let secrets = Secrets::take(call.secrets)?;
        let kind = self.existing(&call.volume_id, &secrets)?;
        let refused = |one: &VolumeCapability| wanted(Some(one), kind).err();
        if let Some(status) = call.volume_capabilities.iter().find_map(refused) {
            return Ok(ValidateResponse { confirmed: None, message: status.message().to_owned() });
        }
        let confirmed = Confirmed {
            volume_context: call.volume_context,
            volume_capabilities: call.volume_capabilities,
            parameters: call.parameters,
        };
        Ok(ValidateResponse { confirmed: Some(confirmed), message: String::new() })
    }

    /// The kind of a volume that exists.
    fn existing(&self, id: &str, secrets: &Secrets) -> Answer<&'static str> {
        let is_known = self.made.find::<Made>(id)?.is_some();
        match Id::parse(id) {
            Some(Id::Tree { .. }) if is_known => Ok("tree"),
            Some(Id::Exclusive { .. }) if is_known => Ok("exclusive"),
            Some(Id::Shared { .. }) if is_known => Ok("volume"),
            Some(Id::Shared { folder, name, address }) => {
                let held = self.mounts.hold(&Source::shared(&address, ""), secrets)?.for_controller();
                shared::capacity(held.place(), &folder, &name)?.map(|_| "volume").ok_or_else(|| missing(id))
            }
            _ => Err(missing(id)),
        }
    }

    pub(crate) fn list_volumes(&self, call: ListVolumesRequest) -> Answer<ListVolumesResponse> {
        let Ok(most) = usize::try_from(call.max_entries) else {
            return Err(refuse::invalid("max_entries is negative", "send 0 for all, or a number"));
        };
        let token = &call.starting_token;
        // A token is the hash of the last volume before, which may be deleted by now.
        if !(token.is_empty() || token.len() == 32 && token.bytes().all(|byte| byte.is_ascii_hexdigit())) {
            return Err(Status::new(
                Code::Aborted,
                "the starting_token is not one of this driver; next: begin without one",
            ));
        }
        let mut all = self.made.all::<Made>()?;
        all.retain(|(hash, _)| token.is_empty() || hash > token);
        let left = if most == 0 { 0 } else { all.len().saturating_sub(most) };
        all.truncate(all.len() - left);
        let next_token = match all.last() {
            Some((hash, _)) if left > 0 => hash.clone(),
            _ => String::new(),
        };
        let entries = all.iter().map(|(_, made)| VolumeEntry { volume: Some(self.volume(made)) }).collect();
        Ok(ListVolumesResponse { entries, next_token })
    }

    pub(crate) fn expand_volume(&self, call: ExpandRequest) -> Answer<ExpandResponse> {
        names::check_id(&call.volume_id)?;
        let secrets = Secrets::take(call.secrets)?;
        let Some(range) = &call.capacity_range else {
            return Err(refuse::invalid(
                "the call has no capacity_range",
                "send the new size as required_bytes",
            ));
        };
        let size = Size::of(Some(range))?;
        let _alone = self.alone(&call.volume_id)?;
        let capacity = match Id::parse(&call.volume_id) {
            Some(Id::Shared { folder, name, address }) => {
                let held = self.mounts.hold(&Source::shared(&address, ""), &secrets)?.for_controller();
                shared::capacity(held.place(), &folder, &name)?.ok_or_else(|| missing(&call.volume_id))?;
                capacity::grow(held.place(), &Path::new(&folder).join(&name), size)?
            }
            Some(Id::Exclusive { name, node }) => self.grow_exclusive(&name, &node, size)?,
            Some(Id::Tree { .. }) => {
                return Err(refuse::invalid(
                    "a published tree has the size that it has",
                    "publish a larger one",
                ));
            }
            None => return Err(missing(&call.volume_id)),
        };
        if let Some(made) = self.made.find::<Made>(&call.volume_id)? {
            self.made.put(&call.volume_id, &Made { capacity, ..made })?;
        }
        Ok(ExpandResponse { capacity_bytes: capacity, node_expansion_required: false })
    }
}

fn kind_of(class: &Class) -> &'static str {
    match class {
        Class::Tree(_) => "tree",
        Class::Shared { .. } => "volume",
        Class::Exclusive { .. } => "exclusive",
    }
}

fn context(pairs: &[(&str, String)]) -> Texts {
    pairs.iter().map(|(key, value)| ((*key).to_owned(), value.clone())).collect()
}

fn taken(name: &str) -> Status {
    refuse::exists(
        format!("there is a volume {name} already, with another size or other parameters"),
        "use another name, or delete that volume",
    )
}

fn missing(id: &str) -> Status {
    refuse::not_found(format!("there is no volume {id}"), "check the volume_id, or make the volume")
}
