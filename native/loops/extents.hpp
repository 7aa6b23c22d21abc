// How far a loop of a program reads and writes in its slots, by what it is told: programs compare it with
// the sizes of the slots before anything runs, as numbers may be a stranger's.
//
// In doubles, which do not overflow: they are exact below 2^53, and no slot reaches that far.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <stdexcept>
#include <vector>

class Extents {
public:
    // Places along an axis, and elements from one to the next.
    struct Axis {
        int64_t size, step;
    };

    explicit Extents(size_t slots) : ends_(slots) {}

    // Elements of so many bytes at all places of some axes, the first one at `first`.
    void add(size_t slot, double bytes, std::initializer_list<Axis> axes, int64_t first = 0)
    {
        double least = static_cast<double>(first), last = least;
        bool any = true;
        for (const Axis& axis : axes) {
            check(axis.size);
            any = any && axis.size;
            const double reach = (static_cast<double>(axis.size) - 1) * static_cast<double>(axis.step);
            (reach < 0 ? least : last) += reach;
        }
        if (!any)
            return;
        if (least < 0)
            throw std::invalid_argument("expected elements from the start of a slot on");
        to(slot, (last + 1) * bytes);
    }

    // As many elements as sizes say, without gaps.
    void all(size_t slot, double bytes, std::initializer_list<int64_t> sizes)
    {
        for (const int64_t size : sizes) {
            check(size);
            bytes *= static_cast<double>(size);
        }
        to(slot, bytes);
    }

    // Bytes up to the end of what a loop reaches in a slot.
    double end(size_t slot) const { return ends_.at(slot); }

private:
    static void check(int64_t size)
    {
        if (size < 0)
            throw std::invalid_argument("expected sizes of 0 or more");
    }

    void to(size_t slot, double end) { ends_.at(slot) = std::max(ends_.at(slot), end); }

    std::vector<double> ends_;
};
