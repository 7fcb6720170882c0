// Reference decoders for raw LZ4 blocks and raw Snappy elements, written for plainness.
//
// A decoder reads exactly `source_size` bytes and knows no expected size: `room` is where the
// mapped memory ends, as it would end for an engine, not where the caller's slot ends.
// LZ4: https://github.com/lz4/lz4/blob/dev/doc/lz4_Block_format.md
// Snappy: https://github.com/google/snappy/blob/main/format_description.txt (without the preamble)

#include <cstddef>
#include <cstdint>
#include <cstring>

namespace {

enum Verdict : int { kDone = 0, kCorrupt = 1, kOutOfRoom = 2 };

struct Reader {
    const std::uint8_t *at;
    const std::uint8_t *end;

    std::size_t left() const { return static_cast<std::size_t>(end - at); }

    bool number(int bytes, std::size_t *value) {
        if (left() < static_cast<std::size_t>(bytes)) return false;
        *value = 0;
        for (int i = 0; i < bytes; ++i) *value |= static_cast<std::size_t>(*at++) << (8 * i);
        return true;
    }
};

struct Writer {
    std::uint8_t *base;
    std::size_t written;
    std::size_t room;

    Verdict literals(Reader &reader, std::size_t count) {
        if (count > reader.left()) return kCorrupt;
        std::size_t fits = count < room - written ? count : room - written;
        std::memcpy(base + written, reader.at, fits);
        written += fits;
        reader.at += fits;
        return fits == count ? kDone : kOutOfRoom;
    }

    // Byte by byte on purpose: a match may overlap what it is producing.
    Verdict match(std::size_t offset, std::size_t count) {
        if (offset == 0 || offset > written) return kCorrupt;
        for (; count > 0; --count) {
            if (written == room) return kOutOfRoom;
            base[written] = base[written - offset];
            ++written;
        }
        return kDone;
    }
};

// A length of 15 goes on in bytes of 255 and ends with a smaller one.
bool extended(Reader &reader, std::size_t *length) {
    if (*length != 15) return true;
    std::size_t more = 255;
    while (more == 255) {
        if (!reader.number(1, &more)) return false;
        *length += more;
    }
    return true;
}

Verdict lz4_sequences(Reader &reader, Writer &writer) {
    while (reader.left() > 0) {
        std::size_t token = *reader.at++;
        std::size_t literals = token >> 4;
        if (!extended(reader, &literals)) return kCorrupt;
        Verdict verdict = writer.literals(reader, literals);
        if (verdict != kDone) return verdict;
        if (reader.left() == 0) return kDone;
        std::size_t offset = 0;
        std::size_t length = token & 15;
        if (!reader.number(2, &offset) || !extended(reader, &length)) return kCorrupt;
        verdict = writer.match(offset, length + 4);
        if (verdict != kDone) return verdict;
    }
    return kCorrupt;  // a block ends with literals: never after a match, never empty
}

Verdict snappy_literal(Reader &reader, Writer &writer, std::size_t tag) {
    std::size_t length = tag >> 2;
    if (length >= 60 && !reader.number(static_cast<int>(length - 59), &length)) return kCorrupt;
    return writer.literals(reader, length + 1);
}

Verdict snappy_copy(Reader &reader, Writer &writer, std::size_t tag) {
    std::size_t low = 0;
    if ((tag & 3) == 1) {
        if (!reader.number(1, &low)) return kCorrupt;
        return writer.match(((tag >> 5) << 8) | low, ((tag >> 2) & 7) + 4);
    }
    if (!reader.number((tag & 3) == 2 ? 2 : 4, &low)) return kCorrupt;
    return writer.match(low, (tag >> 2) + 1);
}

Verdict snappy_elements(Reader &reader, Writer &writer) {
    while (reader.left() > 0) {
        std::size_t tag = *reader.at++;
        Verdict verdict = (tag & 3) == 0 ? snappy_literal(reader, writer, tag)
                                         : snappy_copy(reader, writer, tag);
        if (verdict != kDone) return verdict;
    }
    return kDone;
}

using Decoder = Verdict (*)(Reader &, Writer &);

int decode(Decoder decoder, const std::uint8_t *source, std::size_t source_size,
           std::uint8_t *target, std::size_t room, std::size_t *written) {
    Reader reader{source, source + source_size};
    Writer writer{target, 0, room};
    Verdict verdict = decoder(reader, writer);
    *written = writer.written;
    return verdict;
}

}  // namespace

extern "C" {

int fakecuda_lz4(const std::uint8_t *source, std::size_t source_size, std::uint8_t *target,
                 std::size_t room, std::size_t *written) {
    return decode(lz4_sequences, source, source_size, target, room, written);
}

int fakecuda_snappy(const std::uint8_t *source, std::size_t source_size, std::uint8_t *target,
                    std::size_t room, std::size_t *written) {
    return decode(snappy_elements, source, source_size, target, room, written);
}

}  // extern "C"
