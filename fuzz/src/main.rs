//! Runs libFuzzer on one target, which the environment names:
//! `COVEY_FUZZ=gossip covey-fuzz CORPUS -max_total_time=60`.
//! `COVEY_FUZZ_SEEDS=FOLDER` writes the target's seeds there first.

#![no_main]

use std::sync::OnceLock;

mod targets;

static TARGET: OnceLock<&targets::Target> = OnceLock::new();

fn target() -> &'static targets::Target {
    TARGET.get_or_init(|| {
        let name = std::env::var("COVEY_FUZZ").unwrap_or_default();
        targets::TARGETS.iter().find(|target| target.name == name).unwrap_or_else(|| {
            let names: Vec<&str> = targets::TARGETS.iter().map(|target| target.name).collect();
            eprintln!("COVEY_FUZZ must be one of: {}", names.join(" "));
            std::process::exit(2)
        })
    })
}

libfuzzer_sys::fuzz_target!(
    init: {
        let target = target();
        if let Some(folder) = std::env::var_os("COVEY_FUZZ_SEEDS") {
            let folder = std::path::Path::new(&folder);
            for (n, seed) in (target.seeds)().iter().enumerate() {
                if let Err(error) = std::fs::write(folder.join(format!("seed-{n}")), seed) {
                    eprintln!("{}: {error}", folder.display());
                    std::process::exit(2);
                }
            }
        }
    },
    |data: &[u8]| (target().run)(data)
);
