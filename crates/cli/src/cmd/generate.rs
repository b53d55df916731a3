//! `covey generate`: writes man pages and shell completions from clap's argument table. It is for packagers
//! (`make man`).

use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use api::error::{Context, Result};
use clap::{Command, CommandFactory};
use clap_complete::Shell;
use clap_mangen::Man;
use clap_mangen::roff::{Roff, bold, roman};
use serde::Serialize;

use crate::Cli;
use crate::cmd::config;
use crate::helper::Helper;
use crate::term::Term;

/// Writes man pages or shell completions into a folder
#[derive(Debug, clap::Args)]
#[command(
    hide = true,
    after_help = "Examples:\n  covey generate man target/man\n  covey generate completions target/completions"
)]
pub struct Args {
    /// What to write
    what: What,
    /// The folder; made if it is not there
    dir: PathBuf,
}

#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum What {
    /// covey(1), one page for each command, mount.covey(8) and covey.toml(5)
    Man,
    /// For bash, zsh and fish
    Completions,
}

#[derive(Debug, Serialize)]
struct Outcome {
    files: Vec<PathBuf>,
}

/// The manual's name, on the pages of every program.
const MANUAL: &str = "Covey";

/// Runs the command.
pub fn run(args: &Args, term: Term) -> Result<u8> {
    std::fs::create_dir_all(&args.dir).at("make", &args.dir)?;
    let files = match args.what {
        What::Man => man(&args.dir),
        What::Completions => completions(&args.dir),
    };
    let outcome = Outcome { files: files.at("write into", &args.dir)? };
    term.result(&outcome, || format!("Wrote {} files into {}.", outcome.files.len(), args.dir.display()));
    Ok(0)
}

fn completions(dir: &Path) -> io::Result<Vec<PathBuf>> {
    let shown = shown(&command());
    let write = |shell| clap_complete::generate_to(shell, &mut shown.clone(), "covey", dir);
    [Shell::Bash, Shell::Zsh, Shell::Fish].into_iter().map(write).collect()
}

/// A copy without hidden arguments, because completions would offer them.
fn shown(command: &Command) -> Command {
    // The table takes only `'static` texts. The program ends after this, so the leak does no harm.
    let for_good = |text: &str| -> &'static str { Box::leak(text.to_owned().into_boxed_str()) };
    let mut copy = Command::new(for_good(command.get_name()));
    copy = copy.visible_aliases(command.get_visible_aliases().map(for_good).collect::<Vec<_>>());
    copy = command.get_about().cloned().into_iter().fold(copy, Command::about);
    copy = copy.args(command.get_arguments().filter(|arg| !arg.is_hide_set()).cloned());
    copy.subcommands(command.get_subcommands().filter(|sub| !sub.is_hide_set()).map(shown))
}

/// The command line as it is parsed.
fn command() -> Command {
    Cli::command().disable_help_subcommand(true)
}

fn man(dir: &Path) -> io::Result<Vec<PathBuf>> {
    let source = format!("covey {}", env!("CARGO_PKG_VERSION"));
    let page = |command: Command, section: &str| of_command(command, section, &source, dir);
    let mut root = command();
    root.build();
    let mut files = Vec::new();
    for sub in root.get_subcommands().filter(|sub| !sub.is_hide_set()) {
        files.push(page(sub.clone(), "1")?);
    }
    files.push(page(root, "1")?);
    files.push(page(Helper::command(), "8")?);
    let path = dir.join("covey.toml.5");
    let mut file = File::create(&path)?;
    of_the_file(&source).to_writer(&mut file)?;
    file.flush()?;
    files.push(path);
    Ok(files)
}

/// The page of one command. The text after its help is copied line by line, since it has examples and tables.
fn of_command(command: Command, section: &str, source: &str, dir: &Path) -> io::Result<PathBuf> {
    let behind = command.get_after_help().map(ToString::to_string).unwrap_or_default();
    let has_commands = command.get_subcommands().any(|sub| !sub.is_hide_set());
    let page = Man::new(command).section(section).source(source).manual(MANUAL);
    let path = dir.join(page.get_filename());
    let mut file = File::create(&path)?;
    page.render_title(&mut file)?;
    page.render_name_section(&mut file)?;
    page.render_synopsis_section(&mut file)?;
    page.render_description_section(&mut file)?;
    page.render_options_section(&mut file)?;
    if has_commands {
        page.render_subcommands_section(&mut file)?;
    }
    let (examples, notes) = behind.split_once("\n\n").unwrap_or((&behind, ""));
    let mut more = Roff::new();
    for (head, text) in [("EXAMPLES", examples.trim_start_matches("Examples:\n")), ("NOTES", notes)] {
        if !text.is_empty() {
            more.control("SH", [head]);
            as_it_is(&mut more, text);
        }
    }
    more.to_writer(&mut file)?;
    file.flush()?;
    Ok(path)
}

/// Text whose line breaks are kept.
fn as_it_is(page: &mut Roff, text: &str) {
    page.control("nf", []);
    for line in text.lines() {
        page.text([roman(line)]);
    }
    page.control("fi", []);
}

/// The page covey.toml(5). The example is its list of keys.
fn of_the_file(source: &str) -> Roff {
    let mut page = Roff::new();
    page.control("TH", ["covey.toml", "5", "", source, MANUAL]);
    page.control("SH", ["NAME"]);
    page.text([roman("covey.toml - configuration of Covey")]);
    page.control("SH", ["DESCRIPTION"]);
    page.text([
        roman("A file of TOML, read by "),
        bold("covey mount"),
        roman(", "),
        bold("covey up"),
        roman(" and commands that use an object store, from ~/.config/covey/covey.toml and /etc/covey/covey.toml; the former wins where both say something. "),
        bold("--config"),
        roman(" FILE, or the variable COVEY_CONFIG, names the one file to read instead. The command line wins over the environment, and that over the file. "),
        bold("covey config"),
        roman(" shows what is in force and where it comes from."),
    ]);
    page.control("PP", []);
    page.text([roman(
        "An unknown key, a value that cannot be understood and anything that looks like a credential is an error that names file and line.",
    )]);
    page.control("SH", ["EXAMPLE"]);
    page.text([roman("What covey config --example prints:")]);
    page.control("PP", []);
    as_it_is(&mut page, &config::example());
    page.control("SH", ["SEE ALSO"]);
    page.text([
        bold("covey"),
        roman("(1), "),
        bold("covey-mount"),
        roman("(1), "),
        bold("mount.covey"),
        roman("(8)"),
    ]);
    page
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_command_has_a_page_and_every_shell_its_completions() {
        let temp = tempfile::tempdir().unwrap();
        let pages = man(temp.path()).unwrap();
        let read = |name: &str| std::fs::read_to_string(temp.path().join(name)).unwrap();
        for sub in Cli::command().get_subcommands().filter(|sub| !sub.is_hide_set()) {
            assert!(read(&format!("covey-{}.1", sub.get_name())).contains("EXAMPLES"), "{}", sub.get_name());
        }
        assert!(read("covey.1").contains("covey\\-mount(1)") && read("mount.covey.8").contains("fstab"));
        assert!(read("covey.toml.5").contains("commit = 1"));
        assert!(!pages.iter().any(|page| page.ends_with("covey-generate.1")));
        assert_eq!(completions(temp.path()).unwrap().len(), 3);
        for name in ["covey.bash", "_covey", "covey.fish"] {
            let text = read(name);
            assert!(text.contains("umount") && text.contains("log-level"), "{name}");
            assert!(!text.contains("ready-fd") && !text.contains("generate"), "{name} offers what is hidden");
        }
    }
}
