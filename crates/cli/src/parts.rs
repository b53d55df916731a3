//! Parts that a program may be built without: the features of this crate. `make build` makes the program that
//! has all of them.

use api::error::Failure;

/// Returns the failure of a command or an option that belongs to a part that this program lacks.
#[allow(dead_code, reason = "a program that has all parts lacks none")]
pub fn lacking(part: &str) -> Failure {
    Failure::new("not-built", format!("this program was built without {part}"))
        .next("build the one that has it: make build; it is then at target/release/covey")
}

/// Declares a command in place of one whose part is left out. It takes any words, and says what is lacking.
#[allow(unused_macros, reason = "a program that has all parts needs none of these commands")]
macro_rules! absent {
    ($name:ident, $part:literal) => {
        /// A command of a part that is left out.
        pub mod $name {
            /// Not in this program; make build makes the one that has it
            #[derive(Debug, clap::Args)]
            #[command(after_help = "Example: make build", disable_help_flag = true)]
            pub struct Args {
                #[arg(hide = true, trailing_var_arg = true, allow_hyphen_values = true)]
                words: Vec<std::ffi::OsString>,
            }

            /// Runs the command.
            pub fn run(args: &Args, _: crate::term::Term) -> api::error::Result<u8> {
                let _ = &args.words;
                Err(crate::parts::lacking($part))
            }
        }
    };
}
#[allow(unused_imports, reason = "a program that has all parts needs none of these commands")]
pub(crate) use absent;
