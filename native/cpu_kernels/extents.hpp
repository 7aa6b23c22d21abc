// The extents of a loop: how many bytes it accesses in each slot, computed from its parameters. A
// program compares them with the sizes of its slots before it runs, because parameters may come
// from an untrusted file.
//
// Extents are doubles: they do not overflow, and they are exact below 2^53, more than any slot
// holds.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <stdexcept>
#include <vector>

class Extents {
public:
    // The number of elements along an axis, and the stride between them.
    struct Axis {
        int64_t size, stride;
    };

    explicit Extents(size_t slots) : ends_(slots) {}

    // Add the elements of `bytes` each along all axes, starting at element `first`.
    void add(size_t slot, double bytes, std::initializer_list<Axis> axes, int64_t first = 0)
    {
        double lowest = static_cast<double>(first), highest = lowest, count = 1;
        bool any = true;
        for (const Axis& axis : axes) {
            count *= at_least_one(axis.size);
            any = any && axis.size;
            const double span =
                (static_cast<double>(axis.size) - 1) * static_cast<double>(axis.stride);
            (span < 0 ? lowest : highest) += span;
        }
        check_empty(any, count);
        if (!any)
            return;
        if (lowest < 0)
            throw std::invalid_argument("expected elements at non-negative offsets of a slot");
        extend(slot, (highest + 1) * bytes);
    }

    // Add a contiguous array of these sizes.
    void add_dense(size_t slot, double bytes, std::initializer_list<int64_t> sizes)
    {
        double count = 1;
        bool any = true;
        for (const int64_t size : sizes) {
            count *= at_least_one(size);
            any = any && size;
        }
        check_empty(any, count);
        extend(slot, any ? count * bytes : 0);
    }

    // Return the end of the accessed bytes of a slot.
    double end(size_t slot) const { return ends_.at(slot); }

private:
    // Return a size as a factor: 1 for 0.
    static double at_least_one(int64_t size)
    {
        if (size < 0)
            throw std::invalid_argument("expected sizes of 0 or more");
        return static_cast<double>(std::max<int64_t>(size, 1));
    }

    // Bound the other sizes of an empty array: a loop must not iterate over them for ever.
    static void check_empty(bool any, double count)
    {
        if (!any && count >= 0x1p31)
            throw std::invalid_argument("expected sizes below 2^31 of an array without elements");
    }

    void extend(size_t slot, double end) { ends_.at(slot) = std::max(ends_.at(slot), end); }

    std::vector<double> ends_;
};
