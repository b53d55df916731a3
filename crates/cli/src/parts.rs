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

#[cfg(test)]
mod tests {
    use clap::{Args, FromArgMatches};

    use crate::term::Term;

    super::absent!(made_up, "a part");

    #[test]
    fn a_command_of_a_part_that_is_left_out_takes_any_words_and_says_what_has_it() {
        let command = made_up::Args::augment_args(clap::Command::new("made-up"));
        let words = ["made-up", "--listen", "127.0.0.1:1", "--help", "x"];
        let typed = command.try_get_matches_from(words).unwrap();
        let args = made_up::Args::from_arg_matches(&typed).unwrap();
        let failure = made_up::run(&args, Term::new(false, false)).unwrap_err();
        assert_eq!(failure.code, "not-built");
        assert!(failure.to_string().contains("built without a part"), "{failure}");
        assert!(failure.to_string().contains("make build"), "{failure}");
    }
}
