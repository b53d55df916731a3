//! Makes a store of the `object_store` crate from a spec and an environment. That crate signs requests and
//! reads answers.
//!
//! This module does not let that crate read the environment itself: it would accept an endpoint or a bucket
//! that the spec did not name. The variables that it may see are listed here.

use std::path::Path as File;
use std::sync::Arc;
use std::time::Duration;

use object_store::aws::{AmazonS3Builder, AmazonS3ConfigKey, AwsCredentialProvider};
use object_store::azure::{AzureConfigKey, MicrosoftAzure, MicrosoftAzureBuilder};
use object_store::gcp::{GcpCredential, GoogleCloudStorage, GoogleCloudStorageBuilder, GoogleConfigKey};
use object_store::list::PaginatedListStore;
use object_store::{ObjectStore, RetryConfig, StaticCredentialProvider};
use reqwest::Url;
use reqwest::header::HeaderValue;

use super::contents::WithSums;
use super::environment::Environment;
use super::fault::Fault;
use super::keys::{self, Keys};
use super::later::Later;
use super::lines::one_line;
use super::roles::{Ends, Role};
use super::spec::{RemoteSpec, Store};
use super::wire::Wire;

/// Variables other than keys that affect the store's requests.
const S3_OPTIONS: [&str; 5] = [
    "AWS_SERVER_SIDE_ENCRYPTION",
    "AWS_SSE_KMS_KEY_ID",
    "AWS_SSE_BUCKET_KEY_ENABLED",
    "AWS_SSE_CUSTOMER_KEY_BASE64",
    "AWS_REQUEST_PAYER",
];

/// Variables that the crate itself needs to get keys for a role.
const S3_ROLES: [&str; 7] = [
    "AWS_WEB_IDENTITY_TOKEN_FILE",
    "AWS_ROLE_ARN",
    "AWS_ROLE_SESSION_NAME",
    "AWS_ENDPOINT_URL_STS",
    "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
    "AWS_METADATA_ENDPOINT",
    "AWS_IMDSV1_FALLBACK",
];

/// One store in two variants: deleting many keys at once is a separate request, which not every store
/// supports.
pub(crate) struct Stores {
    pub(crate) one: Arc<dyn ObjectStore>,
    pub(crate) many: Arc<dyn ObjectStore>,
    /// The store's listings page by page. None if its keys are not known yet.
    pub(crate) pages: Option<Arc<dyn PaginatedListStore>>,
    /// Of S3: the keys that sign requests.
    pub(crate) signs: Option<AwsCredentialProvider>,
    /// Of S3: what asks for the store's sums of an object.
    pub(crate) sums: Option<WithSums>,
    /// Whose protocol it speaks.
    pub(crate) kind: Store,
}

/// Completes the spec: if it has no endpoint or region, they come from the environment or a profile.
///
/// # Errors
/// The environment's value is invalid.
pub(crate) fn resolve(spec: &RemoteSpec, environment: &Environment) -> Result<RemoteSpec, Fault> {
    let (endpoint, region) = match spec.store {
        Store::S3 => {
            let profile = keys::profile(environment)?;
            let endpoint = environment.first(&["AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT"]);
            let region = environment.first(&["AWS_REGION", "AWS_DEFAULT_REGION"]);
            (endpoint.map(str::to_owned).or(profile.endpoint), region.map(str::to_owned).or(profile.region))
        }
        Store::Gcs => (environment.get("GOOGLE_BASE_URL").map(str::to_owned), None),
        Store::Azure => {
            (environment.first(&["AZURE_STORAGE_ENDPOINT", "AZURE_ENDPOINT"]).map(str::to_owned), None)
        }
    };
    let endpoint = spec.endpoint.clone().or(endpoint);
    let region = spec.region.clone().or(region);
    spec.clone().at(endpoint.as_deref(), region.as_deref()).map_err(|error| {
        let next = error.next().unwrap_or_else(|| "correct it in the environment".to_owned());
        Fault::no_keys(error.what(), next)
    })
}

/// Makes the stores for a volume that exists already, which works in part without its origin. Keys that are
/// missing or unusable now may become available later. Until then each request fails for lack of keys.
///
/// # Errors
/// Only for S3, whose store does not look for keys itself: a setting in the environment is invalid.
pub(crate) fn build_or_later(
    spec: &RemoteSpec,
    environment: &Environment,
    keys: Option<&Arc<Keys>>,
    wire: &Wire,
) -> Result<Stores, Fault> {
    match build(spec, environment, keys, wire) {
        Err(Fault::NoKeys { .. }) if spec.store != Store::S3 => {}
        built => return built,
    }
    let (spec, environment, wire, kind) = (spec.clone(), environment.clone(), wire.clone(), spec.store);
    let make = move || -> Result<Arc<dyn ObjectStore>, Fault> {
        Ok(match spec.store {
            Store::Azure => azure(&spec, &environment, &wire)?,
            _ => gcs(&spec, &environment, &wire)?,
        })
    };
    let later: Arc<dyn ObjectStore> = Arc::new(Later::new(make));
    Ok(Stores { one: Arc::clone(&later), many: later, pages: None, signs: None, sums: None, kind })
}

/// Makes the stores. Sends nothing.
///
/// # Errors
/// Keys are missing or cannot be read.
pub(crate) fn build(
    spec: &RemoteSpec,
    environment: &Environment,
    keys: Option<&Arc<Keys>>,
    wire: &Wire,
) -> Result<Stores, Fault> {
    let is_https = |url: &String| url.starts_with("https://");
    if environment.is_unsigned() && !spec.endpoint.as_ref().is_none_or(is_https) {
        return Err(Fault::no_keys(
            "requests without keys go over https only",
            "name an endpoint with https://",
        ));
    }
    match spec.store {
        Store::S3 => s3(spec, environment, keys, wire),
        Store::Gcs => same(gcs(spec, environment, wire)?, Store::Gcs),
        Store::Azure => same(azure(spec, environment, wire)?, Store::Azure),
    }
}

fn same<S: ObjectStore + PaginatedListStore>(store: Arc<S>, kind: Store) -> Result<Stores, Fault> {
    Ok(Stores { one: store.clone(), many: store.clone(), pages: Some(store), signs: None, sums: None, kind })
}

/// Turns off the retries of `object_store`: the engine does them itself.
fn no_retry() -> RetryConfig {
    RetryConfig { max_retries: 0, retry_timeout: Duration::ZERO, ..RetryConfig::default() }
}

fn s3(
    spec: &RemoteSpec,
    environment: &Environment,
    keys: Option<&Arc<Keys>>,
    wire: &Wire,
) -> Result<Stores, Fault> {
    let make = |many: bool| {
        let mut builder = AmazonS3Builder::new()
            .with_bucket_name(&spec.bucket)
            .with_region(spec.region.as_deref().unwrap_or("us-east-1"))
            .with_retry(no_retry())
            .with_disable_bulk_delete(!many)
            .with_skip_signature(environment.is_unsigned())
            .with_http_connector(wire.clone());
        builder = match &spec.endpoint {
            Some(endpoint) => builder
                .with_endpoint(endpoint)
                .with_allow_http(endpoint.starts_with("http://"))
                .with_virtual_hosted_style_request(false),
            // A bucket name with dots matches no certificate of the form *.s3.REGION.amazonaws.com.
            None => {
                let as_host = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
                builder.with_virtual_hosted_style_request(spec.bucket.bytes().all(as_host))
            }
        };
        builder = configured(builder, environment, &S3_OPTIONS)?;
        if let Some(keys) = keys {
            builder = builder.with_credentials(Arc::clone(keys) as AwsCredentialProvider);
        }
        builder.build().map_err(|error| Fault::unfit(&error))
    };
    if let Some(keys) = keys.filter(|keys| keys.are_of_role()) {
        keys.ask_with(role(spec, environment, wire, keys.are_of_container()));
    }
    let one = Arc::new(make(false)?);
    let is_signed = !environment.is_unsigned();
    let signs = Arc::clone(one.credentials());
    let region = spec.region.clone().unwrap_or_else(|| "us-east-1".to_owned());
    Ok(Stores {
        one: one.clone(),
        many: Arc::new(make(true)?),
        pages: Some(one),
        signs: Some(signs.clone()).filter(|_| is_signed),
        sums: Some(WithSums { signs, region }).filter(|_| is_signed),
        kind: Store::S3,
    })
}

/// The builder with those of the variables that are set.
fn configured(
    builder: AmazonS3Builder,
    environment: &Environment,
    names: &[&str],
) -> Result<AmazonS3Builder, Fault> {
    names.iter().try_fold(builder, |builder, name| {
        Ok(match (environment.line(name)?, name.to_ascii_lowercase().parse::<AmazonS3ConfigKey>()) {
            (Some(value), Ok(key)) => builder.with_config(key, value),
            _ => builder,
        })
    })
}

/// What asks for the keys of a role.
fn role(spec: &RemoteSpec, environment: &Environment, wire: &Wire, container: bool) -> Role {
    let (spec, environment, ends) = (spec.clone(), environment.clone(), Ends::default());
    let wire = wire.for_keys(&ends);
    Role::new(ends, move || {
        let full = if container { of_container(&environment)? } else { None };
        let (wire, is_elsewhere) = match full {
            Some((url, token)) => (wire.elsewhere(url, token), true),
            None => (wire.clone(), false),
        };
        let builder = AmazonS3Builder::new()
            .with_bucket_name(&spec.bucket)
            .with_region(spec.region.as_deref().unwrap_or("us-east-1"))
            .with_retry(no_retry())
            .with_http_connector(wire);
        let mut builder = configured(builder, &environment, &S3_ROLES)?;
        if is_elsewhere {
            builder = builder.with_config(AmazonS3ConfigKey::ContainerCredentialsRelativeUri, "/");
        }
        let built = builder.build();
        built.map(|store| Arc::clone(store.credentials())).map_err(|error| Fault::unfit(&error))
    })
}

/// The URL of a container's credentials, and the token that it asks for. The crate demands a token, and that
/// its file has no line end ([`super::forms`] removes it from other tokens).
fn of_container(environment: &Environment) -> Result<Option<(Url, Option<HeaderValue>)>, Fault> {
    let relative = environment.get("AWS_CONTAINER_CREDENTIALS_RELATIVE_URI");
    let full = environment.get("AWS_CONTAINER_CREDENTIALS_FULL_URI").filter(|_| relative.is_none());
    let Some(full) = full else { return Ok(None) };
    let wrong =
        |name: &str, why: String| Fault::no_keys(format!("{name} is of no use ({why})"), "correct it");
    let url =
        full.parse().map_err(|_| wrong("AWS_CONTAINER_CREDENTIALS_FULL_URI", "it is no URL".to_owned()))?;
    let name = "AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE";
    let (token, from) = match environment.get(name) {
        Some(file) => {
            let text = std::fs::read_to_string(file).map_err(|error| wrong(name, error.to_string()))?;
            (Some(text), format!("the file {file} ({name})"))
        }
        None => {
            let name = "AWS_CONTAINER_AUTHORIZATION_TOKEN";
            (environment.get(name).map(str::to_owned), format!("{name} of the environment"))
        }
    };
    let token = token.map(|token| {
        let mut header = HeaderValue::from_str(one_line(&token, &from)?)
            .map_err(|_| wrong(&from, "it has bytes that no header may have".to_owned()))?;
        header.set_sensitive(true);
        Ok(header)
    });
    Ok(Some((url, token.transpose()?)))
}

fn gcs(spec: &RemoteSpec, environment: &Environment, wire: &Wire) -> Result<Arc<GoogleCloudStorage>, Fault> {
    let named = [
        "GOOGLE_SERVICE_ACCOUNT",
        "GOOGLE_SERVICE_ACCOUNT_PATH",
        "GOOGLE_SERVICE_ACCOUNT_KEY",
        "GOOGLE_APPLICATION_CREDENTIALS",
        "GOOGLE_BEARER_TOKEN",
        "GOOGLE_SKIP_SIGNATURE",
    ];
    let home = environment.get("HOME").unwrap_or("");
    let default = format!("{home}/.config/gcloud/application_default_credentials.json");
    let is_found = || File::new(&default).exists() || keys::listens(METADATA);
    if !environment.is_unsigned() && environment.first(&named).is_none() && !is_found() {
        return Err(Fault::no_keys(
            format!(
                "no keys were found; looked at GOOGLE_APPLICATION_CREDENTIALS, GOOGLE_SERVICE_ACCOUNT, {default} and the metadata service (it does not answer)"
            ),
            "set GOOGLE_APPLICATION_CREDENTIALS to a key file",
        ));
    }
    let mut builder = GoogleCloudStorageBuilder::new();
    for (name, value) in environment.lines("GOOGLE_")? {
        if let Ok(key) = name.to_ascii_lowercase().parse::<GoogleConfigKey>() {
            builder = builder.with_config(key, value);
        }
    }
    builder = builder.with_bucket_name(&spec.bucket).with_retry(no_retry()).with_http_connector(wire.clone());
    if environment.is_unsigned() {
        // With credentials the crate looks for no others.
        let none = StaticCredentialProvider::new(GcpCredential { bearer: String::new() });
        builder = builder.with_skip_signature(true).with_credentials(Arc::new(none));
    }
    if let Some(endpoint) = &spec.endpoint {
        builder = builder.with_base_url(endpoint);
    }
    let store = builder.build().map_err(|error| Fault::unfit(&error))?;
    Ok(Arc::new(store))
}

fn azure(spec: &RemoteSpec, environment: &Environment, wire: &Wire) -> Result<Arc<MicrosoftAzure>, Fault> {
    let named = [
        "AZURE_STORAGE_ACCOUNT_KEY",
        "AZURE_STORAGE_ACCESS_KEY",
        "AZURE_STORAGE_SAS_TOKEN",
        "AZURE_STORAGE_SAS_KEY",
        "AZURE_STORAGE_TOKEN",
        "AZURE_STORAGE_CLIENT_ID",
        "AZURE_CLIENT_ID",
        "AZURE_FEDERATED_TOKEN_FILE",
        "AZURE_MSI_ENDPOINT",
        "AZURE_IDENTITY_ENDPOINT",
        "AZURE_USE_AZURE_CLI",
        "AZURE_STORAGE_USE_EMULATOR",
        "AZURE_SKIP_SIGNATURE",
    ];
    let is_signed = !environment.is_unsigned();
    let accounts = ["AZURE_STORAGE_ACCOUNT_NAME", "AZURE_STORAGE_USE_EMULATOR"];
    if is_signed && environment.first(&accounts).is_none() {
        return Err(Fault::no_keys("no storage account is named", "set AZURE_STORAGE_ACCOUNT_NAME"));
    }
    if is_signed && environment.first(&named).is_none() && !keys::listens(METADATA) {
        return Err(Fault::no_keys(
            "no keys were found; looked at AZURE_STORAGE_ACCOUNT_KEY, AZURE_STORAGE_SAS_TOKEN, AZURE_CLIENT_ID, AZURE_FEDERATED_TOKEN_FILE and the metadata service (it does not answer)",
            "set AZURE_STORAGE_ACCOUNT_KEY",
        ));
    }
    let mut builder = MicrosoftAzureBuilder::new();
    for (name, value) in environment.lines("AZURE_")? {
        if let Ok(key) = name.to_ascii_lowercase().parse::<AzureConfigKey>() {
            builder = builder.with_config(key, value);
        }
    }
    builder =
        builder.with_container_name(&spec.bucket).with_retry(no_retry()).with_http_connector(wire.clone());
    if !is_signed {
        // The crate wants an account. It is only in signatures, and in URLs of a store without an endpoint.
        builder = builder.with_skip_signature(true).with_account(UNSIGNED);
    }
    if let Some(endpoint) = &spec.endpoint {
        builder = builder.with_endpoint(endpoint.clone()).with_allow_http(endpoint.starts_with("http://"));
    }
    let store = builder.build().map_err(|error| Fault::unfit(&error))?;
    Ok(Arc::new(store))
}

/// The account of requests that none signs.
const UNSIGNED: &str = "unsigned";

/// The address of the metadata service on the machines of the clouds.
const METADATA: &str = "http://169.254.169.254";
