//! The manifests and the chart of Kubernetes. There is no cluster here: they are rendered by helm (`HELM`)
//! and decoded into the types of the Kubernetes API, strictly (`KUBE_STRICT`; `make csi-tools` builds both).
//! What they say to the driver is checked without those programs.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use covey_tests::{Need, requires, run_ok, say};

fn deploy(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy").join(path)
}

/// Decodes manifests; how many there were.
fn decode(name: &str, text: &str) -> usize {
    let mut strict = Command::new(std::env::var_os("KUBE_STRICT").unwrap());
    let mut child =
        strict.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(text.as_bytes()).unwrap();
    let done = child.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&done.stdout).into_owned();
    assert!(done.status.success(), "{name}: {said}{}", String::from_utf8_lossy(&done.stderr));
    said.lines().filter(|line| line.starts_with("ok ")).count()
}

#[test]
fn manifests_are_those_of_the_kubernetes_api() {
    requires!(Need::Env("KUBE_STRICT"));
    let mut all = 0;
    for (name, documents) in [
        ("driver.yaml", 8),
        ("controller.yaml", 1),
        ("node.yaml", 1),
        ("exclusive.yaml", 3),
        ("classes.yaml", 3),
        ("example.yaml", 5),
    ] {
        let text = std::fs::read_to_string(deploy("kubernetes").join(name)).unwrap();
        assert_eq!(decode(name, &text), documents, "{name}");
        all += documents;
    }
    let wrong =
        std::fs::read_to_string(deploy("kubernetes/node.yaml")).unwrap().replace("hostPath:", "hostpath:");
    assert!(std::panic::catch_unwind(|| decode("wrong", &wrong)).is_err(), "a wrong field is found");
    say(format_args!("{all} manifests decoded"));
}

#[test]
fn the_chart_renders_manifests_of_the_kubernetes_api() {
    requires!(Need::Env("HELM"), Need::Env("KUBE_STRICT"));
    let helm = || Command::new(std::env::var_os("HELM").unwrap());
    let chart = deploy("helm/covey");
    let limit = Duration::from_secs(60);
    run_ok(helm().args(["lint", "--strict"]).arg(&chart), limit);
    let folder = covey_tests::scratch();
    let values = folder.path().join("values.yaml");
    let few = "controller: {enabled: false}\nmetricsPort: 0\n";
    let many = "exclusive: {enabled: true, tolerations: [{operator: Exists}]}\nimagePullSecrets: [{name: pull}]\n\
        controller: {cache: {storageClassName: fast}, nodeSelector: {a: b}, resources: {limits: {memory: 1Gi}}}\n\
        classes:\n- {name: a, secret: s, parameters: {volume: 'postgres://covey@db/covey?volume=w'}, mountOptions: [nosuid]}\n\
        - {name: b, parameters: {tree: 's3://b/m@latest', follow: 30}}\n";
    for (text, documents) in [("{}\n", 9), (few, 8), (many, 14)] {
        std::fs::write(&values, text).unwrap();
        let mut template = helm();
        template.args(["template", "covey"]).arg(&chart).args([
            "--namespace",
            "covey",
            "--kube-version",
            "1.31.0",
        ]);
        let rendered = run_ok(template.arg("--values").arg(&values), limit);
        assert_eq!(decode("the chart", &rendered.stdout), documents, "{}", rendered.stdout);
    }
    say(format_args!("helm lint, and three renderings of the chart decoded"));
}

/// The driver was process 1 of its container, and every daemon that had ended stayed there as a zombie.
#[test]
fn regression_the_image_has_an_init() {
    let text = std::fs::read_to_string(deploy("Dockerfile")).unwrap();
    assert!(text.contains("\nENTRYPOINT [\"/usr/bin/tini\", \"--\", \"/usr/bin/covey\"]\n"), "{text}");
    assert!(text.contains("ca-certificates tini "), "{text}");
    // The manifests leave it in place: they name arguments, and no program.
    for folder in ["kubernetes", "helm/covey/templates"].map(deploy) {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            let text = std::fs::read_to_string(&path).unwrap();
            let ours = text.split("- name: covey\n").nth(1).unwrap_or_default();
            assert!(!ours.contains("          command:"), "{}", path.display());
        }
    }
}

/// The arguments that manifests and chart give to the driver are known to it.
#[test]
fn the_driver_knows_the_arguments_of_the_manifests() {
    let help = covey_tests::program::covey_ok(&["csi", "--help"]).stdout;
    let files = ["kubernetes/controller.yaml", "kubernetes/node.yaml", "kubernetes/exclusive.yaml"];
    let mut seen = 0;
    for name in files.map(deploy) {
        let text = std::fs::read_to_string(&name).unwrap();
        let ours = text.split("- name: covey\n").nth(1).unwrap().split("volumeMounts:").next().unwrap();
        for line in ours.lines().filter_map(|line| line.trim().strip_prefix("- --")) {
            let option = line.split('=').next().unwrap();
            assert!(help.contains(&format!("--{option}")), "{}: --{option}", name.display());
            seen += 1;
        }
    }
    assert!(seen >= 15, "{seen}");
}

/// The kubelet changed group and mode of all files of a shared volume when a pod with an fsGroup started.
#[test]
fn regression_files_of_shared_volumes_keep_their_group() {
    for (name, policy) in [
        ("kubernetes/driver.yaml", "None"),
        ("helm/covey/templates/driver.yaml", "None"),
        // A volume of one node belongs to one claim.
        ("kubernetes/exclusive.yaml", "File"),
        ("helm/covey/templates/exclusive.yaml", "File"),
    ] {
        let text = std::fs::read_to_string(deploy(name)).unwrap();
        assert!(text.contains(&format!("\n  fsGroupPolicy: {policy}\n")), "{name}");
    }
}
