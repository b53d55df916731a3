//! The listings of uploads and of their parts.

use std::sync::Arc;

use s3s::dto::*;
use s3s::s3_error;

use crate::answers;
use crate::attributes::Sum;
use crate::bucket::Bucket;
use crate::errors::Result;
use crate::flow::blocking;
use crate::{set_sums, uploads};

/// The parts of an upload.
pub async fn parts(bucket: Arc<Bucket>, input: ListPartsInput) -> Result<ListPartsOutput> {
    let max = answers::max_keys(input.max_parts)?;
    let after = input.part_number_marker.unwrap_or(0);
    let (key, id) = (input.key.clone(), input.upload_id.clone());
    let (upload, (parts, more)) = blocking(move || {
        let upload = uploads::find(&bucket, &key, &id)?;
        let parts = uploads::parts(&bucket, &upload, after, usize::try_from(max).unwrap_or(0))?;
        Ok((upload, parts))
    })
    .await?;
    let next = parts.last().map_or(after, |part| part.number);
    let shown = parts.into_iter().map(|part| {
        let sum = part.sum.as_ref().map(Sum::to_dto).unwrap_or_default();
        let mut shown = Part {
            part_number: Some(part.number),
            size: i64::try_from(part.size).ok(),
            e_tag: answers::etag(part.etag),
            last_modified: Some(answers::time(part.modified)),
            ..Part::default()
        };
        set_sums!(shown, sum);
        shown
    });
    let algorithm = upload.summing.map(|summing| summing.algorithm.name());
    Ok(ListPartsOutput {
        bucket: Some(input.bucket),
        key: Some(input.key),
        upload_id: Some(input.upload_id),
        parts: Some(shown.collect()),
        is_truncated: Some(more),
        max_parts: Some(max),
        part_number_marker: Some(after),
        next_part_number_marker: Some(next),
        owner: Some(answers::owner()),
        storage_class: Some(StorageClass::from_static(StorageClass::STANDARD)),
        checksum_algorithm: algorithm.map(ChecksumAlgorithm::from_static),
        checksum_type: upload.summing.map(|summing| ChecksumType::from_static(summing.kind())),
        ..ListPartsOutput::default()
    })
}

/// The uploads of a bucket. Those of one key are in the order in which they began.
pub async fn uploads(
    bucket: Arc<Bucket>,
    input: ListMultipartUploadsInput,
) -> Result<ListMultipartUploadsOutput> {
    let encode = answers::encoded(input.encoding_type.as_ref())?;
    let max = answers::max_keys(input.max_uploads)?;
    if input.delimiter.as_deref().is_some_and(|delimiter| !delimiter.is_empty()) {
        return Err(s3_error!(NotImplemented, "uploads are listed without a delimiter"));
    }
    let all = blocking(move || uploads::all(&bucket)).await?;
    let prefix = input.prefix.clone().unwrap_or_default();
    let marker = input.key_marker.clone().unwrap_or_default();
    // The marker names an upload. The page begins with the next upload of that key, then later keys follow.
    let last = input.upload_id_marker.clone().filter(|id| !id.is_empty() && !marker.is_empty());
    let begun = last.as_ref().and_then(|id| all.iter().position(|upload| upload.id == *id));
    let mut wanted = all.into_iter().enumerate().filter(|(at, upload)| {
        let behind = match upload.key.as_str().cmp(marker.as_str()) {
            std::cmp::Ordering::Greater => true,
            std::cmp::Ordering::Equal => begun.is_some_and(|begun| *at > begun),
            std::cmp::Ordering::Less => false,
        };
        (marker.is_empty() || behind) && upload.key.starts_with(&prefix)
    });
    let page: Vec<_> = wanted.by_ref().take(usize::try_from(max).unwrap_or(0)).collect();
    let more = wanted.next().is_some() && max > 0;
    let shown = |text: Option<String>| text.map(|text| answers::text(&text, encode));
    let end = page.last().filter(|_| more).map(|(_, upload)| (upload.key.clone(), upload.id.clone()));
    let rows = page.into_iter().map(|(_, upload)| MultipartUpload {
        key: Some(answers::text(&upload.key, encode)),
        upload_id: Some(upload.id),
        initiated: Some(answers::time(upload.begun)),
        owner: Some(answers::owner()),
        storage_class: Some(StorageClass::from_static(StorageClass::STANDARD)),
        checksum_algorithm: upload
            .summing
            .map(|summing| ChecksumAlgorithm::from_static(summing.algorithm.name())),
        checksum_type: upload.summing.map(|summing| ChecksumType::from_static(summing.kind())),
        ..MultipartUpload::default()
    });
    let (next_key, next_id) = end.unzip();
    Ok(ListMultipartUploadsOutput {
        bucket: Some(input.bucket),
        uploads: Some(rows.collect()),
        is_truncated: Some(more),
        max_uploads: Some(max),
        prefix: shown(input.prefix),
        key_marker: Some(shown(input.key_marker).unwrap_or_default()),
        upload_id_marker: input.upload_id_marker,
        next_key_marker: shown(next_key),
        next_upload_id_marker: next_id,
        encoding_type: input.encoding_type,
        ..ListMultipartUploadsOutput::default()
    })
}
