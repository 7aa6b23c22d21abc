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
        double least = static_cast<double>(first), last = least, places = 1;
        bool any = true;
        for (const Axis& axis : axes) {
            places *= counted(axis.size);
            any = any && axis.size;
            const double reach = (static_cast<double>(axis.size) - 1) * static_cast<double>(axis.step);
            (reach < 0 ? least : last) += reach;
        }
        check_empty(any, places);
        if (!any)
            return;
        if (least < 0)
            throw std::invalid_argument("expected elements from the start of a slot on");
        to(slot, (last + 1) * bytes);
    }

    // As many elements as sizes say, without gaps.
    void all(size_t slot, double bytes, std::initializer_list<int64_t> sizes)
    {
        double places = 1;
        bool any = true;
        for (const int64_t size : sizes) {
            places *= counted(size);
            any = any && size;
        }
        check_empty(any, places);
        to(slot, any ? places * bytes : 0);
    }

    // Bytes up to the end of what a loop reaches in a slot.
    double end(size_t slot) const { return ends_.at(slot); }

private:
    // A size as a factor, 1 for 0.
    static double counted(int64_t size)
    {
        if (size < 0)
            throw std::invalid_argument("expected sizes of 0 or more");
        return static_cast<double>(std::max<int64_t>(size, 1));
    }

    // What has no elements may not go round its loops for ever: its other sizes are bounded, too.
    static void check_empty(bool any, double places)
    {
        if (!any && places >= 0x1p31)
            throw std::invalid_argument("expected sizes below 2^31 of what has no elements");
    }

    void to(size_t slot, double end) { ends_.at(slot) = std::max(ends_.at(slot), end); }

    std::vector<double> ends_;
};
