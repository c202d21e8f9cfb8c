//! Deserializers for values as clients of other servers write them: whole numbers with a decimal
//! point, -1 for "no limit", seeds of 64 bits, `null` for an absent field.

use std::fmt;
use std::marker::PhantomData;

use serde::de::{Error, Unexpected, Visitor};
use serde::{Deserialize, Deserializer};

/// A kind of whole number.
trait Whole: Sized {
    const EXPECTED: &'static str;

    /// Returns `None` if the number is out of range.
    fn from_number(number: i128) -> Option<Option<Self>>;
}

struct WholeVisitor<T>(PhantomData<T>);

impl<T: Whole> Visitor<'_> for WholeVisitor<T> {
    type Value = Option<T>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(T::EXPECTED)
    }

    fn visit_unit<E: Error>(self) -> Result<Self::Value, E> {
        Ok(None)
    }

    fn visit_u64<E: Error>(self, number: u64) -> Result<Self::Value, E> {
        let wrong = || E::invalid_value(Unexpected::Unsigned(number), &self);
        T::from_number(number.into()).ok_or_else(wrong)
    }

    fn visit_i64<E: Error>(self, number: i64) -> Result<Self::Value, E> {
        let wrong = || E::invalid_value(Unexpected::Signed(number), &self);
        T::from_number(number.into()).ok_or_else(wrong)
    }

    fn visit_f64<E: Error>(self, number: f64) -> Result<Self::Value, E> {
        let wrong = || E::invalid_value(Unexpected::Float(number), &self);
        // Beyond 2^63 a double is no exact number.
        let whole = number.fract() == 0.0 && number.abs() < 9.3e18;
        whole.then_some(number as i128).and_then(T::from_number).ok_or_else(wrong)
    }
}

fn whole<'de, T: Whole, D: Deserializer<'de>>(deserializer: D) -> Result<Option<T>, D::Error> {
    deserializer.deserialize_any(WholeVisitor(PhantomData))
}

struct Count(u32);

impl Whole for Count {
    const EXPECTED: &'static str = "u32";

    fn from_number(number: i128) -> Option<Option<Self>> {
        u32::try_from(number).ok().map(|count| Some(Self(count)))
    }
}

/// A number from 0 on.
pub(crate) fn count<'de, D: Deserializer<'de>>(d: D) -> Result<Option<u32>, D::Error> {
    Ok(whole::<Count, D>(d)?.map(|Count(count)| count))
}

/// A number from 0 on.
pub(crate) fn size<'de, D: Deserializer<'de>>(d: D) -> Result<Option<usize>, D::Error> {
    Ok(count(d)?.map(|size| size as usize))
}

struct Limit(u32);

impl Whole for Limit {
    const EXPECTED: &'static str = "a whole number";

    fn from_number(number: i128) -> Option<Option<Self>> {
        let limit = u32::try_from(number).unwrap_or(u32::MAX);
        Some((number >= 0).then_some(Self(limit)))
    }
}

/// An upper limit. A negative number means none.
pub(crate) fn limit<'de, D: Deserializer<'de>>(d: D) -> Result<Option<u32>, D::Error> {
    Ok(whole::<Limit, D>(d)?.map(|Limit(limit)| limit))
}

/// A number of candidates. Negative numbers mean all, as 0 does.
pub(crate) fn candidates<'de, D: Deserializer<'de>>(d: D) -> Result<Option<u32>, D::Error> {
    struct Candidates(u32);
    impl Whole for Candidates {
        const EXPECTED: &'static str = "a whole number";

        fn from_number(number: i128) -> Option<Option<Self>> {
            Some(Some(Self(u32::try_from(number.max(0)).unwrap_or(u32::MAX))))
        }
    }
    Ok(whole::<Candidates, D>(d)?.map(|Candidates(number)| number))
}

/// A signed number.
pub(crate) fn signed<'de, D: Deserializer<'de>>(d: D) -> Result<Option<i32>, D::Error> {
    struct Signed(i32);
    impl Whole for Signed {
        const EXPECTED: &'static str = "i32";

        fn from_number(number: i128) -> Option<Option<Self>> {
            i32::try_from(number).ok().map(|number| Some(Self(number)))
        }
    }
    Ok(whole::<Signed, D>(d)?.map(|Signed(number)| number))
}

/// A seed of 64 bits, signed or not.
pub(crate) fn seed<'de, D: Deserializer<'de>>(d: D) -> Result<Option<i64>, D::Error> {
    struct Seed(i64);
    impl Whole for Seed {
        const EXPECTED: &'static str = "a whole number of 64 bits";

        fn from_number(number: i128) -> Option<Option<Self>> {
            let unsigned = || u64::try_from(number).map(u64::cast_signed);
            i64::try_from(number).or_else(|_| unsigned()).ok().map(|seed| Some(Self(seed)))
        }
    }
    Ok(whole::<Seed, D>(d)?.map(|Seed(seed)| seed))
}

/// A value whose `null` means the default.
pub(crate) fn or_default<'de, T, D>(deserializer: D) -> Result<T, D::Error>
where
    T: Default + Deserialize<'de>,
    D: Deserializer<'de>,
{
    Ok(Option::deserialize(deserializer)?.unwrap_or_default())
}

/// JSON text, or the value itself, of which the text is made.
pub(crate) fn json_text<'de, D: Deserializer<'de>>(d: D) -> Result<String, D::Error> {
    use serde_json::Value;
    Ok(match Value::deserialize(d)? {
        Value::Null => String::new(),
        Value::String(text) => text,
        value @ Value::Object(_) => value.to_string(),
        other => {
            let found = other.to_string();
            return Err(D::Error::invalid_type(
                Unexpected::Other(&errors::invalid::excerpt(&found)),
                &"a string",
            ));
        }
    })
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use crate::{ChatRequest, OllamaOptions};

    fn chat(fields: Value) -> Result<ChatRequest, String> {
        let mut request = json!({"messages": []});
        let Value::Object(fields) = fields else { panic!("{fields}") };
        request.as_object_mut().unwrap().extend(fields);
        serde_json::from_value(request).map_err(|error| error.to_string())
    }

    #[test]
    fn numbers_may_have_a_decimal_point_or_mean_no_limit() {
        for (limit, meant) in
            [(json!(8.0), Some(8)), (json!(-1), None), (json!(1e12), Some(u32::MAX))]
        {
            assert_eq!(chat(json!({"max_tokens": limit})).unwrap().max_tokens, meant, "{limit}");
        }
        for (seed, meant) in
            [(json!(u64::MAX), -1), (json!(-1), -1), (json!(1.0), 1), (json!(i64::MIN), i64::MIN)]
        {
            assert_eq!(chat(json!({"seed": seed})).unwrap().seed, Some(meant), "{seed}");
        }
        assert_eq!(chat(json!({"top_k": -1})).unwrap().top_k, Some(0));
        assert_eq!(chat(json!({"n": 2.0})).unwrap().n, Some(2));
        for wrong in
            [json!({"n": -1}), json!({"n": 1.5}), json!({"seed": 1e300}), json!({"n": "1"})]
        {
            assert!(chat(wrong.clone()).is_err(), "{wrong}");
        }
        let options: OllamaOptions =
            serde_json::from_value(json!({"top_k": 40.0, "num_predict": -2.0, "mirostat": 2.0}))
                .unwrap();
        assert_eq!((options.top_k, options.num_predict), (Some(40), None));
        assert_eq!(options.logits_options.mirostat, Some(2));
    }

    #[test]
    fn null_is_as_an_absent_field() {
        let nulls = ["stop", "n", "seed", "top_k", "max_tokens", "stream", "logprobs", "tools"];
        let fields: serde_json::Map<String, Value> =
            nulls.iter().map(|name| ((*name).to_owned(), Value::Null)).collect();
        assert_eq!(chat(Value::Object(fields)).unwrap(), chat(json!({})).unwrap());
        let options = json!({"stream_options": {"include_usage": null}});
        assert!(!chat(options).unwrap().stream_options.unwrap().include_usage);
    }
}
