//! The operations, as s3s calls them. Everything else is answered NotImplemented by s3s.

use std::sync::Arc;

use s3s::dto::*;
use s3s::{S3, S3Request, S3Response, S3Result, s3_error};

use crate::answers::{self, Buckets};
use crate::attributes::{self, Sum};
use crate::bucket::Bucket;
use crate::copying::{self, From, Instead, ToPart};
use crate::errors;
use crate::flow::{self, Sending, blocking};
use crate::keyring::Right;
use crate::keys::Key;
use crate::list;
use crate::object::{self, ReadConditions};
use crate::reload::Keys;
use crate::stage::{self, Conditions, Dress};
use crate::uploads::{self, Completion, Named, Summing};
use crate::{headers_of, set_sums, sums_of, tags};

/// The most keys in one DeleteObjects.
const DELETES_MAX: usize = 1_000;

/// Conditions that are refused, because to ignore them would delete too much.
const OTHER_CONDITIONS: &str = "a condition on size or time";

/// The buckets and the keys.
pub struct Gateway {
    buckets: Buckets,
    /// The names of those that [`crate::foreign`] serves.
    foreign: Vec<String>,
    begun: Timestamp,
    keys: Arc<Keys>,
}

type Answer<T> = S3Result<S3Response<T>>;

fn answer<T>(output: T) -> Answer<T> {
    Ok(S3Response::new(output))
}

impl Gateway {
    /// A gateway to these buckets. `foreign`: names of those that others serve.
    pub fn new(buckets: Vec<Arc<Bucket>>, foreign: Vec<String>, keys: Arc<Keys>) -> Gateway {
        let named = buckets.into_iter().map(|bucket| (bucket.name().to_owned(), bucket));
        let begun = answers::time(base::time::now());
        Gateway { buckets: named.collect(), foreign, begun, keys }
    }

    fn bucket(&self, name: &str) -> S3Result<Arc<Bucket>> {
        let missing = || s3_error!(NoSuchBucket, "there is no bucket of this name");
        self.buckets.get(name).cloned().ok_or_else(missing)
    }

    /// The source of a copy: its bucket, which the key must be allowed to read, and its key.
    fn source<T>(&self, request: &S3Request<T>, source: &CopySource) -> S3Result<(Arc<Bucket>, String)> {
        match source {
            CopySource::Bucket { version_id: Some(version), .. } if &**version != "null" => {
                Err(s3_error!(NoSuchVersion, "objects have no versions here"))
            }
            CopySource::Bucket { bucket, key, .. } => {
                self.keys.now().check(request.credentials.as_ref(), bucket, Right::Read)?;
                Ok((self.bucket(bucket)?, key.to_string()))
            }
            _ => Err(s3_error!(NotImplemented, "a source is BUCKET/KEY")),
        }
    }

    /// An object for GET or HEAD. `content`: with its bytes in the answer.
    async fn get(
        &self,
        input: GetObjectInput,
        if_range: Option<Vec<u8>>,
        content: bool,
    ) -> S3Result<(bool, GetObjectOutput)> {
        if input.version_id.as_deref().is_some_and(|version| version != "null") {
            return Err(s3_error!(NoSuchVersion, "objects have no versions here"));
        }
        let bucket = self.bucket(&input.bucket)?;
        blocking(move || {
            let object = object::open(&bucket, &input.key)?;
            let conditions = ReadConditions {
                if_match: input.if_match,
                if_none_match: input.if_none_match,
                if_modified_since: input.if_modified_since,
                if_unmodified_since: input.if_unmodified_since,
            };
            conditions.check(&object)?;
            let range = input.range.filter(|_| object::holds(if_range.as_deref(), &object.etag));
            let wanted = object::wanted(&object, range, input.part_number)?;
            let sums = input.checksum_mode.is_some_and(|mode| mode.as_str() == ChecksumMode::ENABLED);
            let mut output = answers::got(&object, &wanted, input.part_number.is_some(), sums);
            let (held, offset, len) = (object.found.held, wanted.offset, wanted.len);
            output.body = match content {
                false => None,
                // A small one is read at once, while this thread is there.
                true if len <= flow::PIECE as u64 => {
                    Some(s3s::Body::from(flow::read(&bucket, &held, offset, len)?).into())
                }
                true => Some(Sending::new(bucket, held, offset, len).into_body()),
            };
            Ok((wanted.partial, output))
        })
        .await
    }

    async fn list(&self, bucket: &str, order: list::Order) -> S3Result<list::Page> {
        let bucket = self.bucket(bucket)?;
        blocking(move || list::list(&bucket, &order).map_err(errors::of)).await
    }
}

fn status(partial: bool) -> Option<http::StatusCode> {
    partial.then_some(http::StatusCode::PARTIAL_CONTENT)
}

fn copied_result(copied: copying::Copied) -> (Option<ETag>, Option<Timestamp>, Checksum) {
    let sum = copied.sum.as_ref().map(Sum::to_dto).unwrap_or_default();
    (answers::etag(copied.etag), Some(answers::time(copied.modified)), sum)
}

#[async_trait::async_trait]
impl S3 for Gateway {
    async fn list_buckets(&self, request: S3Request<ListBucketsInput>) -> Answer<ListBucketsOutput> {
        let key = request.credentials.map(|credentials| credentials.access_key).unwrap_or_default();
        let keys = self.keys.now();
        let usable = self.buckets.values().filter(|bucket| keys.right(&key, bucket.name()).is_some());
        let usable: Vec<_> = usable.cloned().collect();
        let prefix = request.input.prefix.clone().unwrap_or_default();
        let begin = prefix.clone();
        let buckets = blocking(move || {
            let shown = usable.iter().filter(|bucket| bucket.name().starts_with(&begin)).map(|bucket| {
                s3s::dto::Bucket {
                    name: Some(bucket.name().to_owned()),
                    creation_date: Some(answers::time(bucket.created())),
                    ..s3s::dto::Bucket::default()
                }
            });
            Ok(shown.collect())
        });
        let mut buckets: Vec<s3s::dto::Bucket> = buckets.await?;
        let foreign = self.foreign.iter().filter(|name| keys.right(&key, name).is_some());
        let foreign = foreign.filter(|name| name.starts_with(&prefix)).map(|name| s3s::dto::Bucket {
            name: Some(name.clone()),
            creation_date: Some(self.begun.clone()),
            ..s3s::dto::Bucket::default()
        });
        buckets.extend(foreign);
        buckets.sort_by(|a, b| a.name.cmp(&b.name));
        let buckets = Some(buckets);
        answer(ListBucketsOutput { buckets, owner: Some(answers::owner()), ..ListBucketsOutput::default() })
    }

    /// Programs create their bucket before they use it. One that exists is theirs, and others are not made.
    async fn create_bucket(&self, request: S3Request<CreateBucketInput>) -> Answer<CreateBucketOutput> {
        if self.buckets.contains_key(&request.input.bucket) {
            return Err(s3_error!(BucketAlreadyOwnedByYou, "this bucket exists and may be used"));
        }
        Err(s3_error!(NotImplemented, "a bucket is a volume, which is named when the gateway is started"))
    }

    async fn head_bucket(&self, request: S3Request<HeadBucketInput>) -> Answer<HeadBucketOutput> {
        self.bucket(&request.input.bucket)?;
        let bucket_region = Some(crate::REGION.to_owned());
        answer(HeadBucketOutput { bucket_region, ..HeadBucketOutput::default() })
    }

    async fn get_bucket_location(
        &self,
        request: S3Request<GetBucketLocationInput>,
    ) -> Answer<GetBucketLocationOutput> {
        self.bucket(&request.input.bucket)?;
        answer(GetBucketLocationOutput::default())
    }

    async fn list_objects(&self, request: S3Request<ListObjectsInput>) -> Answer<ListObjectsOutput> {
        let input = request.input;
        let (encode, max) =
            (answers::encoded(input.encoding_type.as_ref())?, answers::max_keys(input.max_keys)?);
        let after = input.marker.clone().unwrap_or_default();
        let order = answers::order(input.prefix.clone(), input.delimiter.clone(), after, max);
        let grouped = order.delimiter.is_some();
        let page = self.list(&input.bucket, order).await?;
        let (contents, groups) = answers::contents(&page, encode, true);
        let shown = |text: Option<String>| text.map(|text| answers::text(&text, encode));
        answer(ListObjectsOutput {
            name: Some(input.bucket),
            prefix: Some(shown(input.prefix).unwrap_or_default()),
            marker: Some(shown(input.marker).unwrap_or_default()),
            max_keys: Some(max),
            is_truncated: Some(page.next.is_some()),
            contents: Some(contents),
            common_prefixes: Some(groups),
            delimiter: shown(input.delimiter.filter(|delimiter| !delimiter.is_empty())),
            // Without a delimiter, a client goes on from the last key.
            next_marker: shown(page.next).filter(|_| grouped),
            encoding_type: input.encoding_type,
            request_charged: None,
        })
    }

    async fn list_objects_v2(&self, request: S3Request<ListObjectsV2Input>) -> Answer<ListObjectsV2Output> {
        let input = request.input;
        let (encode, max) =
            (answers::encoded(input.encoding_type.as_ref())?, answers::max_keys(input.max_keys)?);
        let after = match &input.continuation_token {
            Some(token) => answers::from_token(token)?,
            None => input.start_after.clone().unwrap_or_default(),
        };
        let order = answers::order(input.prefix.clone(), input.delimiter.clone(), after, max);
        let page = self.list(&input.bucket, order).await?;
        let (contents, groups) = answers::contents(&page, encode, input.fetch_owner == Some(true));
        let shown = |text: Option<String>| text.map(|text| answers::text(&text, encode));
        answer(ListObjectsV2Output {
            name: Some(input.bucket),
            prefix: Some(shown(input.prefix).unwrap_or_default()),
            max_keys: Some(max),
            key_count: i32::try_from(contents.len() + groups.len()).ok(),
            continuation_token: input.continuation_token,
            is_truncated: Some(page.next.is_some()),
            next_continuation_token: page.next.as_deref().map(answers::token),
            contents: Some(contents),
            common_prefixes: Some(groups),
            delimiter: shown(input.delimiter.filter(|delimiter| !delimiter.is_empty())),
            encoding_type: input.encoding_type,
            start_after: shown(input.start_after),
            request_charged: None,
        })
    }

    async fn get_object(&self, request: S3Request<GetObjectInput>) -> Answer<GetObjectOutput> {
        let if_range = answers::if_range(&request.headers);
        let (partial, output) = self.get(request.input, if_range, true).await?;
        Ok(S3Response { status: status(partial), ..S3Response::new(output) })
    }

    async fn head_object(&self, request: S3Request<HeadObjectInput>) -> Answer<HeadObjectOutput> {
        let if_range = answers::if_range(&request.headers);
        let input = request.input;
        let (partial, output) = self
            .get(
                GetObjectInput {
                    bucket: input.bucket,
                    key: input.key,
                    checksum_mode: input.checksum_mode,
                    if_match: input.if_match,
                    if_none_match: input.if_none_match,
                    if_modified_since: input.if_modified_since,
                    if_unmodified_since: input.if_unmodified_since,
                    part_number: input.part_number,
                    range: input.range,
                    version_id: input.version_id,
                    ..GetObjectInput::default()
                },
                if_range,
                false,
            )
            .await?;
        let mut headers = http::HeaderMap::new();
        // The type of this answer has no field for it.
        if let Some(count) = output.tag_count {
            headers.insert("x-amz-tagging-count", http::HeaderValue::from(count));
        }
        let status = status(partial);
        Ok(S3Response { status, headers, ..S3Response::new(answers::head(output)) })
    }

    async fn put_object(&self, mut request: S3Request<PutObjectInput>) -> Answer<PutObjectOutput> {
        let bucket = self.bucket(&request.input.bucket)?;
        let body = request.input.body.take();
        let input = &request.input;
        let headers = headers_of!(input);
        headers.check()?;
        answers::refuse(&[("appending to an object", input.write_offset_bytes.is_some())])?;
        let key = Key::parse(&input.key)?;
        let conditions =
            Conditions { if_match: input.if_match.clone(), if_none_match: input.if_none_match.clone() };
        let kept = tags::from_header(input.tagging.as_deref())?;
        let computed = input.checksum_algorithm.as_ref().map(|algorithm| algorithm.as_str());
        let said = (input.content_md5.clone(), sums_of!(input), computed);
        let upload = answers::upload(&request, body, said)?;
        if key.is_folder() && upload.length != Some(0) {
            return Err(s3_error!(InvalidArgument, "a folder has no content: put it with an empty body"));
        }
        let (whole, digests, size) = flow::receive(&bucket, upload).await?;
        let sum = digests.kept();
        let dress = Dress { headers, tags: kept, etag: digests.md5_hex(), sum, ..Dress::default() };
        let shown = dress.sum.as_ref().map(Sum::to_dto).unwrap_or_default();
        let e_tag = answers::etag(dress.etag.clone());
        blocking(move || {
            if key.is_folder() {
                return stage::make_folder(&bucket, &key, &dress, &conditions);
            }
            whole.dress(&dress).map_err(errors::of)?;
            whole.publish(&key, &conditions)
        })
        .await?;
        let size = i64::try_from(size).ok();
        let mut output = PutObjectOutput { e_tag, size, ..PutObjectOutput::default() };
        set_sums!(output, shown, checksum_type);
        answer(output)
    }

    async fn copy_object(&self, request: S3Request<CopyObjectInput>) -> Answer<CopyObjectOutput> {
        let (from, from_key) = self.source(&request, &request.input.copy_source)?;
        let replaced = answers::conditions(&request.headers)?;
        let input = request.input;
        let bucket = self.bucket(&input.bucket)?;
        let headers = headers_of!(input);
        let replaces = |directive: Option<&str>| match directive {
            None | Some("COPY") => Ok(false),
            Some("REPLACE") => Ok(true),
            Some(_) => Err(s3_error!(InvalidArgument, "a directive is COPY or REPLACE")),
        };
        let new_headers = replaces(input.metadata_directive.as_ref().map(|directive| directive.as_str()))?;
        let new_tags = replaces(input.tagging_directive.as_ref().map(|directive| directive.as_str()))?;
        let kept = tags::from_header(input.tagging.as_deref())?;
        let instead = Instead { headers: new_headers.then_some(headers), tags: new_tags.then_some(kept) };
        let copied = blocking(move || {
            let conditions = ReadConditions {
                if_match: input.copy_source_if_match,
                if_none_match: input.copy_source_if_none_match,
                if_modified_since: input.copy_source_if_modified_since,
                if_unmodified_since: input.copy_source_if_unmodified_since,
            };
            let from = From { bucket: &from, key: &from_key, conditions: &conditions };
            copying::object(&from, &bucket, &input.key, instead, &replaced)
        });
        let (e_tag, last_modified, sum) = copied_result(copied.await?);
        let mut result = CopyObjectResult { e_tag, last_modified, ..CopyObjectResult::default() };
        set_sums!(result, sum, checksum_type);
        answer(CopyObjectOutput { copy_object_result: Some(result), ..CopyObjectOutput::default() })
    }

    async fn delete_object(&self, request: S3Request<DeleteObjectInput>) -> Answer<DeleteObjectOutput> {
        let input = request.input;
        let bucket = self.bucket(&input.bucket)?;
        let others = input.if_match_size.is_some() || input.if_match_last_modified_time.is_some();
        answers::refuse(&[(OTHER_CONDITIONS, others)])?;
        blocking(move || {
            let conditions = Conditions { if_match: input.if_match, if_none_match: None };
            // A key that cannot be a path has no object.
            let Ok(key) = Key::parse(&input.key) else { return conditions.check(None) };
            if stage::remove(&bucket, &key, &conditions)? { stage::settle(&bucket) } else { Ok(()) }
        })
        .await?;
        answer(DeleteObjectOutput::default())
    }

    async fn delete_objects(&self, request: S3Request<DeleteObjectsInput>) -> Answer<DeleteObjectsOutput> {
        let input = request.input;
        let bucket = self.bucket(&input.bucket)?;
        let quiet = input.delete.quiet.unwrap_or(false);
        if input.delete.objects.is_empty() || input.delete.objects.len() > DELETES_MAX {
            return Err(s3_error!(MalformedXML, "one request deletes 1 to 1,000 objects"));
        }
        let (deleted, failed) = blocking(move || {
            let (mut deleted, mut failed) = (Vec::new(), Vec::new());
            for object in input.delete.objects {
                let conditions =
                    Conditions { if_match: object.e_tag.map(ETagCondition::ETag), if_none_match: None };
                let others = object.size.is_some() || object.last_modified_time.is_some();
                let refused = answers::refuse(&[(OTHER_CONDITIONS, others)]);
                let removed = refused.and_then(|()| match Key::parse(&object.key) {
                    Ok(key) => stage::remove(&bucket, &key, &conditions),
                    Err(_) => conditions.check(None).map(|()| false),
                });
                let key = Some(object.key);
                match removed {
                    Ok(_) => deleted.push(DeletedObject { key, ..DeletedObject::default() }),
                    Err(error) => failed.push(Error {
                        key,
                        code: Some(error.code().as_str().to_owned()),
                        message: error.message().map(str::to_owned),
                        version_id: None,
                    }),
                }
            }
            stage::settle(&bucket)?;
            Ok((deleted, failed))
        })
        .await?;
        answer(DeleteObjectsOutput {
            deleted: (!quiet).then_some(deleted),
            errors: Some(failed).filter(|failed| !failed.is_empty()),
            request_charged: None,
        })
    }

    async fn create_multipart_upload(
        &self,
        request: S3Request<CreateMultipartUploadInput>,
    ) -> Answer<CreateMultipartUploadOutput> {
        let input = request.input;
        let bucket = self.bucket(&input.bucket)?;
        let headers = headers_of!(input);
        let algorithm = input.checksum_algorithm.as_ref().map(|algorithm| algorithm.as_str());
        let kind = input.checksum_type.as_ref().map(|kind| kind.as_str());
        let summing = Summing::asked(algorithm, kind)?;
        let dress = Dress { headers, tags: tags::from_header(input.tagging.as_deref())?, ..Dress::default() };
        let key = input.key.clone();
        let id = blocking(move || uploads::create(&bucket, &key, &dress, summing)).await?;
        answer(CreateMultipartUploadOutput {
            bucket: Some(input.bucket),
            key: Some(input.key),
            upload_id: Some(id),
            checksum_algorithm: input.checksum_algorithm,
            checksum_type: summing.map(|summing| ChecksumType::from_static(summing.kind())),
            ..CreateMultipartUploadOutput::default()
        })
    }

    async fn upload_part(&self, mut request: S3Request<UploadPartInput>) -> Answer<UploadPartOutput> {
        let bucket = self.bucket(&request.input.bucket)?;
        let body = request.input.body.take();
        let input = &request.input;
        answers::refuse(&[("encryption with customer keys", input.sse_customer_algorithm.is_some())])?;
        let (key, id, number) = (input.key.clone(), input.upload_id.clone(), input.part_number);
        let looked = {
            let (bucket, key, id) = (bucket.clone(), key.clone(), id.clone());
            blocking(move || uploads::find(&bucket, &key, &id).map(|upload| upload.summing))
        };
        let asked = looked.await?.map(|summing| summing.algorithm.name());
        let computed = input.checksum_algorithm.as_ref().map(|algorithm| algorithm.as_str()).or(asked);
        let said = (input.content_md5.clone(), sums_of!(input), computed);
        let upload = answers::upload(&request, body, said)?;
        let (whole, digests, _) = flow::receive(&bucket, upload).await?;
        let sum = match asked.map(crate::sums::Algorithm::named).transpose()? {
            Some(algorithm) => digests.sum_by(algorithm),
            None => digests.kept(),
        };
        let dress = Dress { etag: digests.md5_hex(), sum, ..Dress::default() };
        let e_tag = answers::etag(dress.etag.clone());
        blocking(move || uploads::keep(&bucket, &key, &id, number, &whole, &dress)).await?;
        let sums = digests.sums;
        let mut output = UploadPartOutput { e_tag, ..UploadPartOutput::default() };
        set_sums!(output, sums);
        answer(output)
    }

    async fn upload_part_copy(
        &self,
        request: S3Request<UploadPartCopyInput>,
    ) -> Answer<UploadPartCopyOutput> {
        let (from, from_key) = self.source(&request, &request.input.copy_source)?;
        let input = request.input;
        let bucket = self.bucket(&input.bucket)?;
        let copied = blocking(move || {
            let conditions = ReadConditions {
                if_match: input.copy_source_if_match,
                if_none_match: input.copy_source_if_none_match,
                if_modified_since: input.copy_source_if_modified_since,
                if_unmodified_since: input.copy_source_if_unmodified_since,
            };
            let from = From { bucket: &from, key: &from_key, conditions: &conditions };
            let to =
                ToPart { bucket: &bucket, key: &input.key, id: &input.upload_id, number: input.part_number };
            copying::part(&from, &to, input.copy_source_range.as_deref())
        });
        let (e_tag, last_modified, sum) = copied_result(copied.await?);
        let mut result = CopyPartResult { e_tag, last_modified, ..CopyPartResult::default() };
        set_sums!(result, sum);
        answer(UploadPartCopyOutput { copy_part_result: Some(result), ..UploadPartCopyOutput::default() })
    }

    async fn complete_multipart_upload(
        &self,
        request: S3Request<CompleteMultipartUploadInput>,
    ) -> Answer<CompleteMultipartUploadOutput> {
        let input = request.input;
        let bucket = self.bucket(&input.bucket)?;
        let size = input.mpu_object_size.map(|size| u64::try_from(size).unwrap_or(u64::MAX));
        let sums = sums_of!(input);
        let conditions = Conditions { if_match: input.if_match, if_none_match: input.if_none_match };
        let parts = input.multipart_upload.and_then(|upload| upload.parts).unwrap_or_default();
        let named = parts.into_iter().map(|part| Named {
            number: part.part_number.unwrap_or(0),
            sums: sums_of!(part),
            etag: part.e_tag.map(ETag::into_value),
        });
        let completion = Completion { parts: named.collect(), conditions, sums, size };
        let (key, id) = (input.key.clone(), input.upload_id);
        let done = blocking(move || uploads::complete(&bucket, &key, &id, &completion)).await?;
        let sum = done.sum.as_ref().map(Sum::to_dto).unwrap_or_default();
        let mut output = CompleteMultipartUploadOutput {
            location: Some(format!("/{}/{}", input.bucket, answers::text(&input.key, true))),
            bucket: Some(input.bucket),
            key: Some(input.key),
            e_tag: answers::etag(done.etag),
            ..CompleteMultipartUploadOutput::default()
        };
        set_sums!(output, sum, checksum_type);
        answer(output)
    }

    async fn abort_multipart_upload(
        &self,
        request: S3Request<AbortMultipartUploadInput>,
    ) -> Answer<AbortMultipartUploadOutput> {
        let input = request.input;
        let bucket = self.bucket(&input.bucket)?;
        blocking(move || uploads::abort(&bucket, &input.key, &input.upload_id)).await?;
        answer(AbortMultipartUploadOutput::default())
    }

    async fn list_parts(&self, request: S3Request<ListPartsInput>) -> Answer<ListPartsOutput> {
        let bucket = self.bucket(&request.input.bucket)?;
        crate::showing::parts(bucket, request.input).await.and_then(answer)
    }

    async fn list_multipart_uploads(
        &self,
        request: S3Request<ListMultipartUploadsInput>,
    ) -> Answer<ListMultipartUploadsOutput> {
        let bucket = self.bucket(&request.input.bucket)?;
        crate::showing::uploads(bucket, request.input).await.and_then(answer)
    }

    async fn get_object_tagging(
        &self,
        request: S3Request<GetObjectTaggingInput>,
    ) -> Answer<GetObjectTaggingOutput> {
        let input = request.input;
        let bucket = self.bucket(&input.bucket)?;
        let kept = blocking(move || Ok(object::open(&bucket, &input.key)?.tags)).await?;
        let tag_set = tags::from_text(kept.as_deref().unwrap_or(""))?;
        answer(GetObjectTaggingOutput { tag_set, version_id: None })
    }

    async fn put_object_tagging(
        &self,
        request: S3Request<PutObjectTaggingInput>,
    ) -> Answer<PutObjectTaggingOutput> {
        let input = request.input;
        let bucket = self.bucket(&input.bucket)?;
        let text = tags::to_text(&input.tagging.tag_set)?;
        blocking(move || set_tags(&bucket, &input.key, &text)).await?;
        answer(PutObjectTaggingOutput::default())
    }

    async fn delete_object_tagging(
        &self,
        request: S3Request<DeleteObjectTaggingInput>,
    ) -> Answer<DeleteObjectTaggingOutput> {
        let input = request.input;
        let bucket = self.bucket(&input.bucket)?;
        blocking(move || set_tags(&bucket, &input.key, "")).await?;
        answer(DeleteObjectTaggingOutput::default())
    }
}

fn set_tags(bucket: &Bucket, key: &str, text: &str) -> S3Result<()> {
    bucket.writable().map_err(errors::of)?;
    let object = object::open(bucket, key)?;
    let node = object.found.node();
    let set = match text {
        "" => bucket.unset(node, attributes::TAGS),
        text => bucket.set(node, attributes::TAGS, text.as_bytes()),
    };
    set.map_err(errors::of)?;
    bucket.changes().inode(node);
    bucket.fs().fsync(node, false).map_err(errors::of)?;
    bucket.changes().settle();
    Ok(())
}
